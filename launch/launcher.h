#pragma once
/// Runs one job: starts its ranks, passes their output on, and collects how they end (launch.h says
/// what a user may rely on). Used by one thread.

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/system/memory_limits.h"
#include "lockstep/dist/rendezvous/running_time.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/job_result.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/nodes.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/survivors.h"
#include "lockstep/launch/terminal_input.h"

namespace lockstep::launch {

/// The longest time between two looks at the clock while a signal is due.
constexpr dist::Seconds longest_nap{0.1};

enum class StreamKind { record, output, error };

/// The read end of a pipe from a rank; closed at its end.
struct Stream {
  StreamKind kind;
  std::size_t rank;
  dist::Descriptor end;
  LineSplitter lines;
};

struct Rank {
  pid_t process;
  bool ended = false;
  bool asked = false;  // it was killed, and node 0 has not said yet whether the job goes on
  bool lost = false;   // what it says counts no more
  bool hung = false;   // no rank waited for it, and it was killed
  double timeout = 0;  // of its World (s); 0: it does not tell whether it is at work
  dist::RunningTime silence{
      dist::Seconds(2)};  // since it last told that it is at work; a launcher looks each second
  bool shown = false;     // its stderr is the launcher's, as rank 0's was before rank 0 was lost
};

/// A signal that all ranks get at a time on the launcher's clock.
struct TimedSignal {
  dist::Seconds when;
  int number;
};

class Launcher {
 public:
  /// `restart`: how often the job was started before.
  Launcher(const LaunchOptions& options, const std::vector<std::string>& command, int restart);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  void start();
  /// Returns when all ranks have ended, on all nodes.
  JobResult run();

 private:
  void start_one();
  void tell_processes() const;
  dist::Descriptor open_stream(StreamKind kind);
  bool ranks_finished() const;
  void wait_for_events();
  void read_stream(Stream& stream);
  void take_line(const Stream& stream, std::string_view line);
  void take_told(std::size_t place, RankEvent event);
  void pass_on(StreamKind kind, const std::string& text);
  void collect_ended();
  void take_world(std::size_t place, const RankEvent& event);  // launcher_looks.cpp
  bool others_parted(std::size_t place) const;
  void look_for_silent();
  void end_silent(std::size_t place);
  RankOutcome hung_outcome(std::size_t place) const;
  bool ends() const { return told_to_stop_ || interrupted_by_ || !schedule_.empty(); }
  // Of a job that survives: launcher_survival.cpp.
  void hear(const RankEvent& event);
  void give(const std::vector<Order>& orders);
  void carry_out(const Order& order);
  void start_added(int number);
  void take_messages();
  bool may_lose_node(int node, const std::string& how);
  void want_ranks(int count);
  std::size_t place_of(int number) const;
  void take_signal();
  void suspend();
  void schedule(std::deque<TimedSignal> signals);
  void send_due_signals();
  // To whole process groups, also where the rank has ended: it may have left children.
  void signal_all(int number) {
    for (const Rank& rank : ranks_) kill(-rank.process, number);
  }
  void plan_to_stop();
  JobResult own_result() const;

  LaunchOptions options_;
  std::vector<std::string> command_;
  int restart_;
  SignalPipe signals_;  // first: SIGUSR1 may come while the launchers wait for each other
  Nodes nodes_;
  Job job_;
  std::optional<Guardian> guardian_;    // until the end: made when signals are blocked
  std::optional<Survivors> survivors_;  // of a job that survives, on node 0
  std::vector<Rank> ranks_;
  std::vector<RankOutcome> outcomes_;  // by rank
  std::vector<Stream> streams_;
  TerminalInput input_;
  std::deque<TimedSignal> schedule_;
  // Time in which the job is stopped (Ctrl-Z) does not count towards the grace period.
  dist::RunningTime clock_{longest_nap};
  std::optional<dist::Deadline> closing_time_;  // while all ranks have ended: see ranks_finished()
  std::size_t ended_ = 0;
  dist::Deadline next_look_{dist::Seconds(1)};
  int generation_ = 0;  // of a job that survives: the last that was published
  const std::optional<std::uint64_t> kills_before_ = out_of_memory_kills();
  bool ranks_changed_ = false;    // a rank was lost, or has joined
  int output_error_ = 0;          // an errno: why stdout cannot be written
  int interrupted_by_ = 0;        // the signal that the launcher got
  std::optional<int> leaves_by_;  // the signal that came when this node's ranks alone had ended
  bool told_to_stop_ = false;     // some signal has been sent to the ranks
};

}  // namespace lockstep::launch
