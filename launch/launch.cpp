#include "lockstep/launch/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/descriptor.h"
#include "lockstep/launch/guardian.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/job_result.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/rank_process.h"
#include "lockstep/launch/signal_pipe.h"

namespace lockstep::dist {
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
  Tail tail{tail_lines};
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
  int open_stream(StreamKind kind);
  bool over() const;
  bool ranks_over() const;
  void wait_for_news();
  void read_stream(Stream& stream);
  void take_line(const Stream& stream, std::string_view line);
  void collect_ended();
  void take_signal();
  void send_due_signals();
  void signal_all(int number);
  void plan_to_stop();
  void talk_to_nodes();
  Place place() const { return {job_.plan().first_rank, nodes_ ? job_.plan().node : -1}; }
  JobResult result();
  JobResult result_of_job();

  LaunchOptions options_;
  std::unique_ptr<Nodes> nodes_;
  Job job_;
  SignalPipe signals_;
  Guardian guardian_;
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  std::vector<Descriptor> write_ends_;  // of one rank's streams, until it has them
  std::deque<TimedSignal> schedule_;
  std::optional<Clock::time_point> closing_time_;  // set when all ranks have ended: see over()
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
  const int record = open_stream(StreamKind::record);
  RankSetup setup{.command = command,
                  .environment = job_.environment(local_rank, record),
                  .lifeline = guardian_.lifeline(),
                  .standard_input = standard_input,
                  .inherited = {job_.token(), record},
                  .signal_mask = signals_.mask_before()};
  if (options_.prefix) setup.standard_output = open_stream(StreamKind::output);
  if (options_.prefix || !first) setup.standard_error = open_stream(StreamKind::error);
  ranks_.push_back({.process = start_rank(setup)});
  write_ends_.clear();
}

// Makes a pipe from the rank that is being started and returns its write end.
int Launcher::open_stream(StreamKind kind) {
  auto [read_end, write_end] = make_pipe();
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  streams_.push_back({kind, ranks_.size(), std::move(read_end), {}});
  write_ends_.push_back(std::move(write_end));
  return write_ends_.back().get();
}

// Ranks are reaped only here: until then the number of a rank, which is also its group's, cannot be
// given to a stranger, so signals to a group always reach the right one. Children that a rank left
// behind cannot be waited for (they are not ours), and a killed process takes a moment to go: ask
// for a second at most, since where nobody collects orphans their group exists for ever.
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
  while (!over()) {
    wait_for_news();
    for (Stream& stream : streams_)
      if (stream.end) read_stream(stream);
    take_signal();  // before the look: a rank that ends after it leaves a signal to wake up by
    collect_ended();
    if (nodes_) talk_to_nodes();
    send_due_signals();
  }
  const JobResult result = result_of_job();
  // A rank that was killed may have left a progress bar on the terminal's line.
  if (!result.report.empty() && isatty(STDERR_FILENO)) write_all(STDERR_FILENO, "\r\x1b[K");
  write_all(STDERR_FILENO, result.report);
  return result.exit_code;
}

// The other nodes' ranks have ended, too, unless the user wants to leave before.
bool Launcher::over() const { return ranks_over() && (!nodes_ || nodes_->result() || left_early_); }

// All ranks have ended and so have their streams. A stream that stays open belongs to a process
// that a rank left behind; it may finish until closing time.
bool Launcher::ranks_over() const {
  if (ended_ < ranks_.size()) return false;
  const bool open = std::any_of(streams_.begin(), streams_.end(),
                                [](const Stream& stream) { return bool(stream.end); });
  return !open || Clock::now() >= *closing_time_;
}

// Blocks until a rank writes or ends, a signal comes, or something is due.
void Launcher::wait_for_news() {
  std::vector<pollfd> sources{{signals_.descriptor(), POLLIN, 0}};
  for (const Stream& stream : streams_)
    if (stream.end) sources.push_back({stream.end.get(), POLLIN, 0});
  if (nodes_) nodes_->add_sources(sources);
  std::optional<Clock::time_point> due;
  if (!ranks_over()) due = closing_time_;
  if (!schedule_.empty()) due = std::min(schedule_.front().when, due.value_or(schedule_[0].when));
  int timeout = nodes_ ? 1000 : -1;  // nodes have deadlines of their own
  if (due) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*due - Clock::now()).count();
    timeout = static_cast<int>(std::clamp<decltype(left)>(left, 0, nodes_ ? timeout : INT_MAX));
  }
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
    rank.tail.add(line);
  }
}

// Learns which ranks have ended, without reaping them (see the destructor).
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

void Launcher::talk_to_nodes() {
  nodes_->look();
  if (nodes_->stopping() && ended_ < ranks_.size()) plan_to_stop();
  if (ranks_over() && !nodes_->reported()) nodes_->report(result());
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

// To whole groups, also those whose rank has ended: it may have left children.
void Launcher::signal_all(int number) {
  for (const Rank& rank : ranks_) kill(-rank.process, number);
}

// On the ranks of this node, whose outcomes it uses up.
JobResult Launcher::result() {
  std::vector<RankOutcome> outcomes;
  bool failed_by_itself = false;
  for (Rank& rank : ranks_) {
    rank.outcome.last_lines = rank.tail.lines();
    failed_by_itself |= rank.outcome.failed() && !rank.outcome.stopped;
    outcomes.push_back(std::move(rank.outcome));
  }
  return interrupted_by_ && !failed_by_itself ? interrupted_by(interrupted_by_, place())
                                              : judge(outcomes, place());
}

JobResult Launcher::result_of_job() {
  if (!nodes_) return result();
  if (nodes_->result()) return *nodes_->result();
  const JobResult own = interrupted_by(interrupted_by_, place());
  nodes_->leave(own);
  return own;
}

}  // namespace

int launch(const LaunchOptions& options, const std::vector<std::string>& command) {
  check<UsageError>(options.ranks >= 1, "[launch] the number of ranks must be at least 1, not {}",
                    options.ranks);
  check<UsageError>(!command.empty(), "[launch] no program to start");
  if (options.nodes.count == 1) {
    Launcher launcher(options, local_job(options.ranks), nullptr);
    launcher.start(command);
    return launcher.run();
  }
  auto nodes = std::make_unique<Nodes>(options.nodes, options.ranks);
  const JobPlan plan = nodes->plan();
  Launcher launcher(options, plan, std::move(nodes));
  launcher.start(command);
  return launcher.run();
}

int launch_self(const LaunchOptions& options, int argc, const char* const* argv) {
  char path[PATH_MAX];
  const int length = checked(static_cast<int>(readlink("/proc/self/exe", path, sizeof path)),
                             "find the running program");
  std::vector<std::string> command{std::string(path, static_cast<std::size_t>(length))};
  command.insert(command.end(), argv + 1, argv + argc);
  return launch(options, command);
}

}  // namespace lockstep::dist
