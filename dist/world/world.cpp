#include "lockstep/dist/world/world.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/system/standard_descriptors.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/mpi/mpi.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/dist/rendezvous/events/launcher_pipe.h"
#include "lockstep/dist/rendezvous/events/left_replicas.h"
#include "lockstep/dist/rendezvous/surroundings/inherited.h"
#include "lockstep/dist/world/fabrics.h"
#include "lockstep/dist/world/launcher_link.h"

namespace lockstep {

namespace {

/// The worlds of more than one rank in this process.
struct Living {
  const void* state;
  Shard shard;
  bool of_thread;
  std::thread::id thread = std::this_thread::get_id();
  pid_t process = ::getpid();  // a child that was forked is no rank
};

std::mutex living_mutex;

std::vector<Living>& living_worlds() {
  static auto* const all = new std::vector<Living>;  // a World may be static, and end later
  return *all;
}

}  // namespace

struct World::State {
  /// A child that was forked ends nothing: what it would end is its parent's.
  template <class... Args>
  static std::shared_ptr<State> make(Args&&... args) {
    return {new State(std::forward<Args>(args)...), [process = ::getpid()](State* ended) {
              if (::getpid() == process) delete ended;
            }};
  }
  State(std::shared_ptr<dist::Fabric> fabric_, int local_rank_, int local_size_,
        const dist::ThreadRank& thread)
      : fabric(std::move(fabric_)),
        local_rank(local_rank_),
        local_size(local_size_),
        communicator(fabric->connect()) {
    communicator->membership().thread = thread;
    for (int r = 0; r < communicator->size(); ++r) members.push_back(r);
    if (communicator->size() == 1) return;
    const std::lock_guard lock(living_mutex);
    living_worlds().push_back(
        {this, {communicator->rank(), communicator->size()}, thread.left != nullptr});
  }

  ~State() {
    {
      const std::lock_guard lock(living_mutex);
      std::erase_if(living_worlds(), [this](const Living& l) { return l.state == this; });
    }
    if (std::uncaught_exceptions() > exceptions)
      abort(fmt::format("rank {} was ended by an error of its own", communicator->rank()));
  }

  /// Of a job that goes on without lost ranks: who is in this world.
  void set_generation(std::shared_ptr<dist::LauncherLink> link_, const dist::Generation& of) {
    link = std::move(link_);
    generation = of.number;
    members = of.members;
    communicator->membership().survival = std::make_shared<dist::Survival>(dist::Survival{members});
  }

  void abort(std::string_view reason) noexcept {
    communicator->abort(reason);
    if (layers) layers->abort(reason);
    fabric->abort(reason);
  }

  std::shared_ptr<dist::Fabric> fabric;
  int local_rank;
  int local_size;
  std::shared_ptr<dist::LauncherLink> link{};  // of a job that survives
  int generation = 0;
  std::vector<int> members{};
  std::unique_ptr<dist::Communicator> layers;  // outlives the other, which tells it of its end
  std::unique_ptr<dist::Communicator> communicator;
  int exceptions = std::uncaught_exceptions();
};

namespace {

void check_timeout(const JoinOptions& options) {
  check<UsageError>(options.timeout > dist::Seconds(0),
                    "[world] the timeout must be positive, got {} s", options.timeout.count());
}

/// What may lose a rank has no engine for GPUs, whose work nobody could call back: what they hold
/// travels through the host.
dist::FabricOptions fabric_options(const JoinOptions& options, bool may_lose_ranks = false) {
  check_timeout(options);
  using enum dist::EngineKind;
  const bool over_nccl = options.comm.starts_with("nccl"), over_ipc = options.transport == "ipc";
  const auto algorithm = dist::algorithm_named(over_nccl ? "auto" : options.comm);
  const auto names = communicator_names();
  check<UsageError>(algorithm && std::ranges::find(names, options.comm) != names.end(),
                    "[world] comm must be one of {}, got '{}'", fmt::join(names, ", "),
                    options.comm);
  check<UsageError>(!over_nccl || !over_ipc, "[world] comm {} has a transport of its own, not '{}'",
                    options.comm, options.transport);
  check<UsageError>((!over_nccl && !over_ipc) || gpu::kind(),
                    "[world] {} is for tensors on GPUs, and this build drives none",
                    over_nccl ? "comm " + options.comm : "transport ipc");
  const dist::EngineKind engine = over_ipc                        ? ipc
                                  : options.comm == "nccl"        ? nccl
                                  : options.comm == "nccl-direct" ? nccl_direct
                                  : may_lose_ranks                ? none
                                                                  : automatic;
  return {{*algorithm, options.timeout}, engine};
}

void check_can_lose_ranks(const JoinOptions& options) {
  const bool bad_comm = options.comm == "mpi" || options.comm.starts_with("nccl");
  check<UsageError>(
      !bad_comm && options.transport != "ipc",
      "[survive] {} cannot go on without a lost rank: take comm auto over shm or tcp, "
      "or start the job without --survive",
      bad_comm ? "comm " + options.comm : "transport ipc");
}

/// The transport of tensors on the host: with ipc, which is for tensors on GPUs, as without a wish.
std::string host_transport(const JoinOptions& options) {
  return options.transport == "ipc" ? "" : options.transport;
}

std::shared_ptr<dist::Fabric> join_fabric(dist::LaunchInfo& launch, const JoinOptions& options) {
  if (options.comm != "mpi")
    return dist::process_fabric(launch, host_transport(options),
                                fabric_options(options, launch.survive_descriptor >= 0));
  check_timeout(options);
  check<UsageError>(options.transport.empty(),
                    "[world] comm mpi has a transport of its own, not '{}'", options.transport);
  return dist::mpi_fabric(options.timeout);
}

/// Of a process, to the launcher that has started it.
class ProcessLink final : public dist::LauncherLink {
 public:
  ProcessLink(dist::LaunchInfo launch, JoinOptions options)
      : launch_(std::move(launch)), options_(std::move(options)) {}

  int rank() const override { return launch_.rank; }
  dist::Generation newest() override { return dist::newest_generation(launch_.survive_descriptor); }
  void tell(const dist::RankEvent& event) noexcept override { dist::tell_launcher(event); }
  dist::Seconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void pause() override { std::this_thread::sleep_for(dist::Seconds(0.002)); }
  std::shared_ptr<dist::Fabric> meet(const dist::Generation& generation) override;

 private:
  dist::LaunchInfo launch_;  // what the launcher has said at the start
  JoinOptions options_;
};

std::shared_ptr<dist::Fabric> ProcessLink::meet(const dist::Generation& generation) {
  dist::LaunchInfo launch = launch_;
  launch.generation = generation.number;
  launch.number = launch_.rank;
  if (generation.number > 0) {
    const dist::Place place = dist::place_in(generation, launch.rank);
    launch.rank = place.rank;
    launch.size = place.size;
    launch.local_rank = place.local_rank;
    launch.local_size = place.local_size;
    if (!generation.address.empty()) launch.rendezvous = generation.address;
    launch.job += fmt::format(" generation {}", generation.number);
  }
  return join_fabric(launch, options_);
}

}  // namespace

std::vector<std::string> communicator_names() {
  return {"auto",         "ring", "direct",      "one-shot", "halving",
          "hierarchical", "nccl", "nccl-direct", "mpi"};
}

World World::join(const JoinOptions& options) {
  open_standard_descriptors();
  dist::die_with_parent_if_asked();
  dist::remember_launcher_pipe();
  dist::report_uncaught_errors();
  dist::LaunchInfo launch = dist::read_environment().value_or(dist::LaunchInfo{});
  if (launch.launcher == "lockstep-run") {
    dist::check_inherited(&std::getenv);
    dist::keep_from_children(&std::getenv);
  }
  if (launch.survive_descriptor >= 0) {
    check_can_lose_ranks(options);
    return join_over(std::make_shared<ProcessLink>(launch, options));
  }
  std::shared_ptr<dist::Fabric> fabric = join_fabric(launch, options);  // may find the local rank
  return World(
      State::make(std::move(fabric), launch.local_rank, launch.local_size, dist::ThreadRank{}));
}

World World::join_over(const std::shared_ptr<dist::LauncherLink>& link, int at_least) {
  while (true) {
    const dist::Generation generation = dist::let_in(*link);
    check<CommError>(generation.number >= at_least, "[survive] generation {} is older than {}",
                     generation.number, at_least);
    const dist::Place place = dist::place_in(generation, link->rank());
    try {
      World world(State::make(link->meet(generation), place.local_rank, place.local_size,
                              dist::ThreadRank{}));
      world.state_->set_generation(link, generation);
      if (generation.number > 0)
        link->tell({.kind = dist::RankEvent::Kind::joined, .number = generation.number});
      return world;
    } catch (CommError& error) {
      dist::suspect_blamed(*link, error, generation, place.rank);
      if (dist::newer_than(*link, generation.number)) continue;
      dist::blame_by_launcher_number(error, generation);
      throw;
    }
  }
}

std::optional<Shard> World::living() {
  const std::lock_guard lock(living_mutex);
  std::optional<Shard> largest;
  for (const Living& world : living_worlds())
    if (world.process == ::getpid() &&
        (!world.of_thread || world.thread == std::this_thread::get_id()) &&
        (!largest || world.shard.size > largest->size))
      largest = world.shard;
  return largest;
}

World::State& World::state() const {
  check<StateError>(state_ != nullptr, "[world] this World was moved from: it has no ranks");
  return *state_;
}

int World::rank() const { return state().communicator->rank(); }
int World::size() const { return state().communicator->size(); }
const std::shared_ptr<dist::LauncherLink>& World::launcher_link() const { return state().link; }
int World::generation() const { return state().generation; }
const std::vector<int>& World::members() const { return state().members; }
int World::local_rank() const { return state().local_rank; }
int World::local_size() const { return state().local_size; }
dist::Communicator& World::communicator() const { return *state().communicator; }
std::string_view World::transport() const { return state().fabric->transport(); }

dist::Communicator& World::layer_communicator() const {
  std::unique_ptr<dist::Communicator>& layers = state().layers;
  if (!layers) {
    // Who does not come is named here: while connections are made, ranks know less of each other.
    communicator().barrier("layers").wait();
    layers = state().fabric->connect();
    layers->membership().survival = communicator().membership().survival;
    layers->membership().layers = communicator().membership().layers;
    communicator().link_failure(*layers);
  }
  return *layers;
}

std::optional<World> World::split(int color) const {
  const Tensor colors = Tensor::empty({size()}, DType::i64);
  communicator().all_gather(Tensor::full({1}, color, DType::i64), colors, "split").wait();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r)
    if (color >= 0 && colors.data<std::int64_t>()[r] == color) members.push_back(r);
  std::shared_ptr<dist::Fabric> group = state().fabric->split(members);
  if (!group) return {};
  World world(State::make(std::move(group), local_rank(), local_size(),
                          communicator().membership().thread));
  world.communicator().membership().survival = communicator().membership().survival;
  return world;
}

std::optional<World> World::new_group(const std::vector<int>& ranks) const {
  std::string text;
  for (const int r : ranks) {
    check<UsageError>(r >= 0 && r < size(), "[new_group] there is no rank {} in a world of {}", r,
                      size());
    check<UsageError>(std::ranges::count(ranks, r) == 1, "[new_group] rank {} is listed {} times",
                      r, std::ranges::count(ranks, r));
    text += fmt::format("member {}\n", r);
  }
  dist::check_same(communicator(), "new_group", text);
  return split(std::ranges::count(ranks, rank()) > 0 ? 0 : -1);
}

void World::abort(std::string_view reason) const noexcept {
  if (state_) state_->abort(reason);
}

void run_threads(int size, const JoinOptions& options, const std::function<void(World&)>& body) {
  check<UsageError>(options.comm != "mpi", "[world] ranks as threads cannot use comm mpi");
  check<UsageError>(Autocast::current() == DType::f32,
                    "[world] an Autocast to {} does not reach ranks that are threads of their own: "
                    "make one in each of them",
                    Autocast::current());
  auto fabrics = dist::threads_fabrics(size, fabric_options(options));
  const std::string transport = host_transport(options);
  check<UsageError>(transport.empty() || transport == "threads",
                    "[world] ranks as threads use transport threads, got '{}'", options.transport);
  // The error to report: the first one, but a cause rather than a consequence.
  std::mutex mutex;
  std::exception_ptr first;
  bool first_is_consequence = false;
  const auto keep = [&](std::exception_ptr error, bool consequence) {
    const std::lock_guard lock(mutex);
    if (first && (consequence || !first_is_consequence)) return;
    first = std::move(error);
    first_is_consequence = consequence;
  };
  std::vector<int> running;
  std::condition_variable changed;
  gpu::prepare_for_threads();
  const auto left = std::make_shared<dist::LeftReplicas>();
  const auto run_rank = [&](int rank) {
    std::optional<World> world;  // if it cannot be made, the others see that this rank left
    const auto give_up = [&](bool consequence, const std::string& reason) {
      keep(std::current_exception(), consequence);
      if (world) world->abort(reason);
    };
    try {
      world = World(World::State::make(std::move(fabrics[dist::index(rank)]), rank, size,
                                       dist::ThreadRank{left, rank}));
      body(*world);
    } catch (const PeerError&) {
      give_up(true, fmt::format("rank {} lost a peer", rank));
    } catch (...) {
      give_up(false, fmt::format("rank {} failed: {}", rank, current_message()));
    }
  };
  const auto run_and_tell = [&](int rank) {
    run_rank(rank);
    const std::lock_guard lock(mutex);
    std::erase(running, rank);
    changed.notify_one();
  };
  std::vector<std::jthread> threads;
  threads.reserve(dist::index(size));
  try {
    for (int rank = 0; rank < size; ++rank) {
      std::unique_lock lock(mutex);  // until it is known whether it runs
      threads.emplace_back(run_and_tell, rank);
      running.push_back(rank);
    }
  } catch (const std::exception& error) {
    const std::string reason = fmt::format("[world] cannot start a thread for rank {} of {}: {}",
                                           threads.size(), size, error.what());
    keep(std::make_exception_ptr(Error(reason)), false);
    fabrics.back()->connect()->abort(reason);  // as the last rank, which has not started
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return running.empty() || first; });
    const dist::Seconds patience = std::min(options.timeout, dist::Seconds(1e6));
    if (!changed.wait_for(lock, patience, [&] { return running.empty(); }))
      dist::tell_who_runs_on(running, patience, first);
  }
  threads.clear();  // joins
  if (!first) first = left->error();
  if (first) std::rethrow_exception(first);
  const std::string difference = left->difference();
  check<StateError>(difference.empty(), "[run_threads] {}", difference);
}

}  // namespace lockstep
