#include "lockstep/dist/world.h"

#include <array>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/dist/environment.h"
#include "lockstep/dist/host_communicator.h"
#include "lockstep/dist/shm.h"
#include "lockstep/dist/store.h"
#include "lockstep/dist/tcp.h"
#include "lockstep/dist/threads.h"

namespace lockstep {

namespace {

/// Makes transports between the ranks of a world, one at each call. A call is collective.
using TransportMaker = std::function<std::unique_ptr<dist::Transport>()>;

}  // namespace

struct World::Membership {
  Membership(TransportMaker maker, const dist::CommunicatorOptions& options_, int local_rank_,
             int local_size_)
      : make_transport(std::move(maker)),
        options(options_),
        local_rank(local_rank_),
        local_size(local_size_),
        communicator(make_transport(), options) {}

  ~Membership() {
    if (std::uncaught_exceptions() > exceptions)
      abort(fmt::format("rank {} was ended by an error of its own", communicator.rank()));
  }

  void abort(std::string_view reason) noexcept {
    communicator.transport().abort(reason);
    if (layers) layers->transport().abort(reason);
  }

  dist::HostCommunicator& layer_communicator() {
    if (!layers) {
      layers = std::make_unique<dist::HostCommunicator>(make_transport(), options);
      communicator.share_fate(*layers);
    }
    return *layers;
  }

  TransportMaker make_transport;
  dist::CommunicatorOptions options;
  int local_rank;
  int local_size;
  dist::HostCommunicator communicator;  // owns its transport, which holds the store
  std::unique_ptr<dist::HostCommunicator> layers;
  int exceptions = std::uncaught_exceptions();
};

namespace {

dist::CommunicatorOptions communicator_options(const JoinOptions& options) {
  using enum dist::Algorithm;
  check<UsageError>(options.timeout > dist::Seconds(0),
                    "[world] the timeout must be positive, got {} s", options.timeout.count());
  if (options.comm == "auto") return {automatic, options.timeout};
  if (options.comm == "ring") return {ring, options.timeout};
  if (options.comm == "direct") return {direct, options.timeout};
  fail<UsageError>("[world] comm must be auto, ring or direct, got '{}'", options.comm);
}

TransportMaker transport_maker(const dist::Launch& launch, const JoinOptions& options) {
  const std::string& wanted = options.transport;
  check<UsageError>(wanted.empty() || wanted == "shm" || wanted == "tcp",
                    "[world] the transport between processes must be shm or tcp, got '{}'", wanted);
  check<UsageError>(
      wanted != "shm" || launch.one_machine(),
      "[world] transport shm needs all ranks on one machine; {} of {} are on this one",
      launch.local_size, launch.size);
  if (launch.size == 1) return [] { return std::move(dist::threads_transports(1).front()); };
  const dist::StoreOptions store_options = dist::store_options(launch, options.timeout);
  const bool memory = launch.one_machine() && store_options.address.is_unix();
  check<UsageError>(wanted != "shm" || memory,
                    "[world] transport shm needs a store at unix:/PATH, got '{}'", launch.store);
  const auto store = dist::join_store(store_options);
  const bool shm = wanted == "shm" || (wanted.empty() && memory);
  return [=] { return shm ? dist::shm_transport(store) : dist::tcp_transport(store); };
}

/// Ranks that are threads take their transports from what was made for all of them beforehand.
class ThreadTransports {
 public:
  ThreadTransports(int size, const dist::ThreadsOptions& options)
      : made_{dist::threads_transports(size, options), dist::threads_transports(size, options)} {}

  TransportMaker maker(int rank) {
    return [this, rank, next = std::size_t{0}]() mutable {
      return std::exchange(made_[next++][dist::index(rank)], nullptr);
    };
  }
  void abort(std::string_view reason) noexcept { made_[0].back()->abort(reason); }

 private:
  std::array<std::vector<std::unique_ptr<dist::Transport>>, 2> made_;
};

/// Remembers the error to report: the first one, but a cause rather than an echo.
class FirstError {
 public:
  void add(std::exception_ptr error, bool echo) {
    const std::lock_guard lock(mutex_);
    if (error_ && (echo || !echo_)) return;
    error_ = std::move(error);
    echo_ = echo;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool echo_ = false;
};

}  // namespace

World World::join(const JoinOptions& options) {
  const dist::CommunicatorOptions communicator = communicator_options(options);
  const dist::Launch launch = dist::read_environment().value_or(dist::Launch{});
  return World(std::make_shared<Membership>(transport_maker(launch, options), communicator,
                                            launch.local_rank, launch.local_size));
}

int World::rank() const { return membership_->communicator.rank(); }
int World::size() const { return membership_->communicator.size(); }
int World::local_rank() const { return membership_->local_rank; }
int World::local_size() const { return membership_->local_size; }
dist::Communicator& World::communicator() const { return membership_->communicator; }
dist::Communicator& World::layer_communicator() const { return membership_->layer_communicator(); }
std::string_view World::transport() const { return membership_->communicator.transport().name(); }

void World::abort(std::string_view reason) const noexcept { membership_->abort(reason); }

void run_threads(int size, const JoinOptions& options, const std::function<void(World&)>& body) {
  const dist::CommunicatorOptions communicator = communicator_options(options);
  check<UsageError>(options.transport.empty() || options.transport == "threads",
                    "[world] ranks as threads use transport threads, got '{}'", options.transport);
  dist::ThreadsOptions stream_options;
  stream_options.join_timeout = options.timeout;
  ThreadTransports transports(size, stream_options);
  FirstError first;
  const auto run_rank = [&](int rank) {
    std::optional<World> world;  // if it cannot be made, its transport goes, as of a rank that left
    const auto give_up = [&](bool echo, const std::string& reason) {
      first.add(std::current_exception(), echo);
      if (world) world->abort(reason);
    };
    try {
      world = World(
          std::make_shared<World::Membership>(transports.maker(rank), communicator, rank, size));
      body(*world);
    } catch (const PeerError&) {
      give_up(true, fmt::format("rank {} lost a peer", rank));
    } catch (const std::exception& error) {
      give_up(false, fmt::format("rank {} failed: {}", rank, error.what()));
    } catch (...) {
      give_up(false, fmt::format("rank {} failed", rank));
    }
  };
  std::vector<std::jthread> threads;
  threads.reserve(dist::index(size));
  try {
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(run_rank, rank);
  } catch (const std::exception& error) {
    const std::string reason = fmt::format("[world] cannot start a thread for rank {} of {}: {}",
                                           threads.size(), size, error.what());
    first.add(std::make_exception_ptr(Error(reason)), false);
    transports.abort(reason);  // as the last rank, which has not started
  }
  threads.clear();  // joins
  first.rethrow();
}

}  // namespace lockstep
