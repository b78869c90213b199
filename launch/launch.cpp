#include "lockstep/launch/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/launch/process.h"

namespace lockstep::launch {

using dist::checked;
using dist::Descriptor;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t tail_lines = 20;  // of a failed rank's stderr

enum class StreamKind { record, output, error };

// The read end of a pipe from a rank; closed at its end.
struct Stream {
  StreamKind kind;
  std::size_t rank;
  Descriptor end;
  LineSplitter lines;
};

struct Rank {
  pid_t process;
  bool ended = false;
  RankOutcome outcome{};
  std::deque<std::string> last_lines{};  // of its stderr
};

// A signal for all ranks at some time to come.
struct TimedSignal {
  Clock::time_point when;
  int number;
};

class Launcher {
 public:
  /// `nodes`: the connections with the other machines; null if there are none.
  Launcher(const LaunchOptions& options, const JobPlan& plan, std::unique_ptr<Nodes> nodes)
      : options_(options), nodes_(std::move(nodes)), job_(plan), guardian_(job_.folder()) {}
  ~Launcher();
  void start(const std::vector<std::string>& command);
  int run();

 private:
  void start_one(const std::vector<std::string>& command, int standard_input);
  Descriptor open_stream(StreamKind kind);
  bool finished() const;
  bool ranks_finished() const;
  void wait_for_events();
  void read_stream(Stream& stream);
  void take_line(const Stream& stream, std::string_view line);
  void collect_ended();
  void take_signal();
  void send_due_signals();
  void signal_all(int number);
  void plan_to_stop();
  void exchange_with_nodes();
  Place place() const { return {job_.plan().first_rank, nodes_ ? job_.plan().node : -1}; }
  JobResult own_result();
  JobResult job_result();

  LaunchOptions options_;
  std::unique_ptr<Nodes> nodes_;
  Job job_;
  SignalPipe signals_;
  Guardian guardian_;
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  std::deque<TimedSignal> schedule_;
  std::optional<Clock::time_point> closing_time_;  // set when all ranks have ended: see finished()
  std::size_t ended_ = 0;
  int interrupted_by_ = 0;     // the signal that the launcher got
  bool left_early_ = false;    // it got it while other nodes' ranks were still running
  bool told_to_stop_ = false;  // some signal has been sent to the ranks
};

void Launcher::start(const std::vector<std::string>& command) {
  const Descriptor nothing(checked(open("/dev/null", O_RDONLY | O_CLOEXEC), "open /dev/null"));
  try {
    for (int rank = 0; rank < options_.ranks; ++rank) start_one(command, nothing.get());
  } catch (const Error& error) {
    const std::string report = fmt::format("error: node {}: {}\n", job_.plan().node, error.what());
    if (nodes_) nodes_->leave({1, report, Cause::failed});
    throw;
  }
}

void Launcher::start_one(const std::vector<std::string>& command, int standard_input) {
  const int local_rank = static_cast<int>(ranks_.size());
  const bool first = job_.plan().first_rank + local_rank == 0;
  const Descriptor record = open_stream(StreamKind::record);
  Descriptor output, error;  // empty: the launcher's own
  if (options_.prefix) output = open_stream(StreamKind::output);
  if (options_.prefix || !first) error = open_stream(StreamKind::error);
  ranks_.push_back(
      {.process = start_rank({.command = command,
                              .environment = job_.environment(local_rank, record.get()),
                              .lifeline = guardian_.lifeline(),
                              .standard_input = standard_input,
                              .standard_output = output.get(),
                              .standard_error = error.get(),
                              .inherited = {job_.token(), record.get()},
                              .signal_mask = signals_.mask_before()})});
}

// Makes a pipe from the rank that is being started and returns its write end.
Descriptor Launcher::open_stream(StreamKind kind) {
  auto [read_end, write_end] = dist::make_pipe();
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  streams_.push_back({kind, ranks_.size(), std::move(read_end), {}});
  return std::move(write_end);
}

// Ranks are reaped only here. Until then the system cannot give the number of a rank, which is also
// its group's, to another process: signals to a group always reach the right one. Children that a
// rank left behind are not ours to wait for, and a killed process takes a moment to end. We look
// for a second at most, because where nobody reaps orphans their group exists for ever.
Launcher::~Launcher() {
  signal_all(SIGKILL);
  for (const Rank& rank : ranks_)
    while (waitpid(rank.process, nullptr, 0) < 0 && errno == EINTR) {
    }
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(1);
  for (const Rank& rank : ranks_)
    while (kill(-rank.process, 0) == 0 && Clock::now() < deadline) usleep(1000);
}

int Launcher::run() {
  while (!finished()) {
    wait_for_events();
    for (Stream& stream : streams_)
      if (stream.end) read_stream(stream);
    take_signal();  // before collect_ended(): a rank that ends after that causes one more SIGCHLD
    collect_ended();
    if (nodes_) exchange_with_nodes();
    send_due_signals();
  }
  const JobResult result = job_result();
  // A rank that was killed may have left a progress bar on the terminal's line.
  if (!result.report.empty() && isatty(STDERR_FILENO)) write_all(STDERR_FILENO, "\r\x1b[K");
  write_all(STDERR_FILENO, result.report);
  return result.exit_code;
}

// The other nodes' ranks must have ended as well, unless the user wants to leave before.
bool Launcher::finished() const {
  return ranks_finished() && (!nodes_ || nodes_->result() || left_early_);
}

// All ranks and their streams have ended. A stream that stays open belongs to a process that a rank
// left behind; it may write until the closing time.
bool Launcher::ranks_finished() const {
  if (ended_ < ranks_.size()) return false;
  const auto open = [](const Stream& stream) { return bool(stream.end); };
  return std::ranges::none_of(streams_, open) || Clock::now() >= *closing_time_;
}

// Blocks until a rank writes or ends, a signal or a message comes, or something is due.
void Launcher::wait_for_events() {
  std::vector<pollfd> sources{{signals_.descriptor(), POLLIN, 0}};
  for (const Stream& stream : streams_)
    if (stream.end) sources.push_back({stream.end.get(), POLLIN, 0});
  if (nodes_) nodes_->add_sources(sources);
  Clock::time_point due = Clock::now() + std::chrono::hours(1);
  if (nodes_) due = Clock::now() + std::chrono::seconds(1);  // nodes have deadlines of their own
  if (closing_time_ && !ranks_finished()) due = std::min(due, *closing_time_);
  if (!schedule_.empty()) due = std::min(due, schedule_.front().when);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
  const int timeout = std::max(0, static_cast<int>(left));
  const int ready = poll(sources.data(), sources.size(), timeout);
  if (ready < 0 && errno != EINTR) checked(ready, "wait for the ranks");
}

void Launcher::read_stream(Stream& stream) {
  const auto take = [&](std::string_view line) { take_line(stream, line); };
  char buffer[16384];
  const ssize_t got = read(stream.end.get(), buffer, sizeof buffer);
  if (got > 0) return stream.lines.feed({buffer, static_cast<std::size_t>(got)}, take);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  stream.lines.finish(take);
  stream.end.close();
}

void Launcher::take_line(const Stream& stream, std::string_view line) {
  Rank& rank = ranks_[stream.rank];
  if (stream.kind == StreamKind::record) {
    if (!rank.outcome.record) rank.outcome.record = read_record(line);
  } else if (options_.prefix) {
    write_all(
        stream.kind == StreamKind::output ? STDOUT_FILENO : STDERR_FILENO,
        fmt::format("[{}] {}\n", job_.plan().first_rank + static_cast<int>(stream.rank), line));
  } else {
    rank.last_lines.emplace_back(line);
    if (rank.last_lines.size() > tail_lines) rank.last_lines.pop_front();
  }
}

// Finds the ranks that have ended, without reaping them (see the destructor).
void Launcher::collect_ended() {
  for (Rank& rank : ranks_) {
    siginfo_t info{};
    if (rank.ended) continue;
    if (waitid(P_PID, static_cast<id_t>(rank.process), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      continue;
    rank.ended = true;
    rank.outcome.order = static_cast<int>(ended_++);
    rank.outcome.stopped = told_to_stop_;
    (info.si_code == CLD_EXITED ? rank.outcome.exit_code : rank.outcome.signal) = info.si_status;
    if (rank.outcome.failed()) plan_to_stop();
  }
  if (ended_ == ranks_.size() && !closing_time_) closing_time_ = Clock::now() + options_.grace;
}

// A rank has failed, here or on another node.
void Launcher::plan_to_stop() {
  if (nodes_) nodes_->stop();
  if (!schedule_.empty() || told_to_stop_) return;
  const Clock::time_point deadline = Clock::now() + options_.grace;
  schedule_ = {{deadline, SIGTERM}, {deadline + options_.patience, SIGKILL}};
}

void Launcher::exchange_with_nodes() {
  nodes_->receive();
  if (nodes_->stopping() && ended_ < ranks_.size()) plan_to_stop();
  if (ranks_finished() && !nodes_->reported()) nodes_->report(own_result());
}

void Launcher::take_signal() {
  const std::optional<int> number = signals_.take();
  if (!number || interrupted_by_) return;
  if (ended_ == ranks_.size()) {
    if (nodes_ && nodes_->reported()) interrupted_by_ = *number, left_early_ = true;
    return;
  }
  interrupted_by_ = *number;
  if (nodes_) nodes_->stop();
  const Clock::time_point now = Clock::now();
  schedule_ = {{now, *number}, {now + options_.patience, SIGKILL}};
}

void Launcher::send_due_signals() {
  while (!schedule_.empty() && schedule_.front().when <= Clock::now()) {
    told_to_stop_ = true;
    signal_all(schedule_.front().number);
    schedule_.pop_front();
  }
}

// To whole groups, also to those whose rank has ended: it may have left children.
void Launcher::signal_all(int number) {
  for (const Rank& rank : ranks_) kill(-rank.process, number);
}

// Of the ranks of this node. It uses up their outcomes.
JobResult Launcher::own_result() {
  std::vector<RankOutcome> outcomes;
  bool failed_by_itself = false;
  for (Rank& rank : ranks_) {
    rank.outcome.last_lines.assign(rank.last_lines.begin(), rank.last_lines.end());
    failed_by_itself |= rank.outcome.failed() && !rank.outcome.stopped;
    outcomes.push_back(std::move(rank.outcome));
  }
  return interrupted_by_ && !failed_by_itself ? interrupted_by(interrupted_by_, place())
                                              : result_of(outcomes, place());
}

JobResult Launcher::job_result() {
  if (!nodes_) return own_result();
  if (nodes_->result()) return *nodes_->result();
  const JobResult own = interrupted_by(interrupted_by_, place());
  nodes_->leave(own);
  return own;
}

}  // namespace

int run_ranks(const LaunchOptions& options, const std::vector<std::string>& command) {
  check<UsageError>(options.ranks >= 1, "[launch] the number of ranks must be at least 1, not {}",
                    options.ranks);
  check<UsageError>(!command.empty(), "[launch] no program to start");
  std::unique_ptr<Nodes> nodes;
  if (options.nodes.count > 1) nodes = std::make_unique<Nodes>(options.nodes, options.ranks);
  const JobPlan plan = nodes ? nodes->plan() : local_job(options.ranks);
  Launcher launcher(options, plan, std::move(nodes));
  launcher.start(command);
  return launcher.run();
}

int run_this_program(const LaunchOptions& options, int argc, const char* const* argv) {
  std::vector<std::string> command{std::filesystem::read_symlink("/proc/self/exe")};
  command.insert(command.end(), argv + 1, argv + argc);
  return run_ranks(options, command);
}

}  // namespace lockstep::launch
