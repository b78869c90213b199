#pragma once
/// A job that survives, in a simulated world. Real: survive(), World, communicators, and the
/// launcher's book of who lives (launch::Survivors). Simulated: time, messages, the deaths of
/// processes, and how long the launcher takes to hear of something. There is no rendezvous: the
/// ranks of a generation meet in a barrier.
///
/// Only the rank that holds the simulated world's baton touches a SimulatedJob.

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/dist/transport/wait_board.h"
#include "lockstep/dist/world/launcher_link.h"
#include "lockstep/dist/world/world.h"
#include "lockstep/launch/survivors.h"

namespace lockstep::test {

struct JobOptions {
  int ranks = 3;                      ///< at the start
  std::vector<dist::Seconds> come{};  ///< when others are started, in ascending order
  dist::Seconds timeout{1};           ///< of collectives
  dist::SimOptions sim{};             ///< its size is set by the job
};

class SimulatedJob {
 public:
  explicit SimulatedJob(JobOptions options);

  /// What a rank does once it has joined. One that is started after others have ended does nothing.
  using Program = std::function<void(int rank, World& world)>;
  dist::SimReport run(const Program& program);

  /// The last rank is lost that others could have gone on without: the job has failed.
  bool failed() const { return failed_; }
  /// By rank: it has ended its program.
  const std::vector<bool>& ended_well() const { return ended_well_; }
  /// By rank: others suspected it, and the launcher has killed it.
  const std::vector<bool>& suspected() const { return suspected_; }
  /// What the launcher would have written.
  const std::string& lines() const { return lines_; }

 private:
  class Link;
  class SimFabric;

  /// The launcher does it when it has heard of it, some milliseconds after now.
  void hears(dist::Seconds now, std::function<void()> what);
  /// What it has heard of until now, by the running rank.
  void advance(dist::Transport& running);
  void run_rank(int rank, dist::Transport& home, const Program& program);
  void kill(int rank) {
    if (running_) dist::kill(*running_, rank);
  }
  void take(const launch::RankEvent& event);
  void fail();
  std::shared_ptr<dist::WaitBoard> board(const dist::Generation& generation, int place);

  JobOptions options_;
  launch::Survivors survivors_;
  std::vector<bool> lost_;  // by rank, as far as the launcher knows
  std::mt19937_64 random_;
  std::multimap<dist::Seconds, std::function<void()>> heard_;
  std::map<int, std::vector<std::shared_ptr<dist::WaitBoard>>> boards_;  // by generation
  std::vector<bool> ended_well_, suspected_;
  std::string lines_;
  dist::Transport* running_ = nullptr;  // the home of the rank that runs
  int added_;                           // ranks that were started, the first ones too
  bool failed_ = false;
};

}  // namespace lockstep::test
