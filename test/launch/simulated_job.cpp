#include "launch/simulated_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::test {

using dist::Seconds;
using Kind = launch::RankEvent::Kind;

/// Of a generation, as one rank sees it.
class SimulatedJob::SimFabric final : public dist::Fabric {
 public:
  SimFabric(SimulatedJob& job, std::shared_ptr<dist::LauncherLink> link, dist::Transport& home,
            dist::Generation generation)
      : job_(job), link_(std::move(link)), home_(home), generation_(std::move(generation)) {}

  int rank() const override {
    const auto place = std::ranges::find(generation_.members, link_->rank());
    return static_cast<int>(place - generation_.members.begin());
  }
  int size() const override { return static_cast<int>(generation_.members.size()); }
  std::string_view transport() const override { return "sim"; }
  std::unique_ptr<dist::Communicator> connect() override {
    dist::CommunicatorOptions options{.timeout = job_.options_.timeout};
    options.board = job_.board(generation_, rank());
    options.watch = [link = link_, mine = generation_.number] {
      const int newest = link->newest().number;
      check<PeerError>(newest == mine, "[survive] generation {} ends, {} begins", mine, newest);
    };
    return std::make_unique<dist::HostCommunicator>(transport_of(connections_++), options);
  }
  std::shared_ptr<dist::Fabric> split(const std::vector<int>&) override {
    lockstep::fail<UsageError>("[split] there are no groups in a simulated job");
  }
  /// Who waits in another connection learns of it, too: "rendezvous", collectives, and layers.
  void abort(std::string_view reason) noexcept override {
    for (int connection = 0; connection < 3; ++connection) transport_of(connection)->abort(reason);
  }

 private:
  std::unique_ptr<dist::Transport> transport_of(int connection) {
    return dist::transport_among(
        home_, fmt::format("generation {}, connection {}", generation_.number, connection),
        generation_.members);
  }

  SimulatedJob& job_;
  std::shared_ptr<dist::LauncherLink> link_;
  dist::Transport& home_;
  dist::Generation generation_;
  int connections_ = 0;
};

class SimulatedJob::Link final : public dist::LauncherLink,
                                 public std::enable_shared_from_this<Link> {
 public:
  Link(SimulatedJob& job, int rank, dist::Transport& home) : job_(job), rank_(rank), home_(home) {}

  int rank() const override { return rank_; }
  dist::Generation newest() override {
    job_.advance(home_);
    return job_.survivors_.generation();
  }
  void tell(const launch::RankEvent& event) noexcept override {
    launch::RankEvent told = event;
    if (told.kind != Kind::suspected) told.rank = rank_;
    hears(told);
  }
  Seconds now() const override { return home_.now(); }
  void pause() override { dist::compute(home_, Seconds(0.002)); }
  std::shared_ptr<dist::Fabric> meet(const dist::Generation& generation) override {
    auto fabric = std::make_shared<SimFabric>(job_, shared_from_this(), home_, generation);
    try {
      fabric->connect()->barrier("rendezvous").wait();
    } catch (const CommError& error) {
      fabric->abort(error.what());
      throw;
    }
    return fabric;
  }

 private:
  void hears(const launch::RankEvent& event) {
    job_.hears(now(), [&job = job_, rank = rank_, event] {  // the link may be gone by then
      if (!job.lost_[dist::index(rank)]) job.take(event);   // else it counts no more
    });
  }

  SimulatedJob& job_;
  int rank_;
  dist::Transport& home_;
};

SimulatedJob::SimulatedJob(JobOptions options)
    : options_(std::move(options)),
      survivors_(std::vector<int>(dist::index(options_.ranks), 0)),
      random_(options_.sim.seed),
      added_(options_.ranks) {
  options_.sim.size = options_.ranks + static_cast<int>(options_.come.size());
  // Ranks that wait for long tell for whom, some times in a timeout. They must get to run for that.
  options_.sim.longest_jump = options_.timeout / 50;
  ended_well_.resize(dist::index(options_.sim.size));
  suspected_.resize(dist::index(options_.sim.size));
  lost_.resize(dist::index(options_.sim.size));
  for (const Seconds when : options_.come)
    heard_.emplace(when, [this] {
      if (failed_ || survivors_.finished()) return;
      take({Kind::wanted});
    });
}

void SimulatedJob::hears(Seconds now, std::function<void()> what) {
  heard_.emplace(now + Seconds(1e-6 * static_cast<double>(random_() % 3000)), std::move(what));
}

void SimulatedJob::advance(dist::Transport& running) {
  running_ = &running;
  while (!heard_.empty() && heard_.begin()->first <= running.now()) {
    const auto what = std::move(heard_.extract(heard_.begin()).mapped());
    what();
  }
}

void SimulatedJob::fail() {
  failed_ = true;
  for (int rank = 0; rank < options_.sim.size; ++rank) kill(rank);
}

void SimulatedJob::take(const launch::RankEvent& event) {
  if (failed_) return;
  using Do = launch::Order::Kind;
  for (const launch::Order& order : survivors_.take(event)) {
    const std::size_t rank = dist::index(order.rank);
    if (order.kind == Do::tell) lines_ += order.line;
    if (order.kind == Do::start) ++added_;
    if (order.kind == Do::forget) lost_[rank] = true;
    if (order.kind == Do::fail) fail();
    if (order.kind != Do::kill) continue;
    suspected_[rank] = suspected_[rank] || event.kind == Kind::suspected;
    kill(order.rank);
  }
}

std::shared_ptr<dist::WaitBoard> SimulatedJob::board(const dist::Generation& generation,
                                                     int place) {
  auto& boards = boards_[generation.number];
  if (boards.empty())
    boards = dist::threads_wait_boards(static_cast<int>(generation.members.size()));
  return boards[dist::index(place)];
}

void SimulatedJob::run_rank(int rank, dist::Transport& home, const Program& program) {
  enum class How { lost, error, well };
  /// The launcher hears of the end of a process, whatever it was.
  struct End {
    SimulatedJob& job;
    int rank;
    dist::Transport& home;
    How kind = How::lost;
    ~End() {
      job.ended_well_[dist::index(rank)] = kind == How::well;
      job.hears(home.now(), [&job = job, rank = rank, kind = kind] {
        if (kind == How::error) return job.fail();
        job.take({kind == How::well ? Kind::ended_well : Kind::killed, rank, SIGKILL});
      });
    }
  };
  if (rank >= options_.ranks) {
    dist::compute(home, options_.come[dist::index(rank - options_.ranks)] + Seconds(1e-4));
    advance(home);
    if (rank >= added_) return;  // the job had ended
  }
  End end{*this, rank, home};
  try {
    World world = World::join_over(std::make_shared<Link>(*this, rank, home));
    program(rank, world);
    end.kind = How::well;
  } catch (const std::exception&) {
    end.kind = How::error;
    throw;
  }
}

dist::SimReport SimulatedJob::run(const Program& program) {
  // A rank's home stays to the end, so that the launcher can be reached: it is the one that hears.
  dist::SimReport report = dist::simulate(
      options_.sim,
      [&](int rank, std::unique_ptr<dist::Transport> home) { run_rank(rank, *home, program); });
  running_ = nullptr;  // nobody is left, to be killed or to hear
  for (; !heard_.empty(); heard_.erase(heard_.begin())) heard_.begin()->second();
  return report;
}

}  // namespace lockstep::test
