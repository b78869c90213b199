#include "lockstep/launch/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/system/memory_limits.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/running_time.h"
#include "lockstep/dist/rendezvous/surroundings/inherited.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/survivors.h"

namespace lockstep::launch {

using dist::Deadline;
using dist::Descriptor;
using dist::Seconds;

namespace {

constexpr std::size_t tail_lines = 20;  // of a failed rank's stderr
constexpr Seconds notice{1};            // between a rank's failure and SIGTERM for the others
}  // namespace

Launcher::Launcher(const LaunchOptions& options, const std::vector<std::string>& command,
                   int restart)
    : options_(options),
      command_(command),
      restart_(restart),
      nodes_(options.nodes, options.ranks, options.grace,
             options.survive ? std::optional(options.respawn) : std::nullopt),
      job_(nodes_.plan()) {
  // Until here SIGINT and the like end this process at once, also while nodes_ waits for others.
  // From here on there are a folder and ranks to end first, so the signals wait for take_signal().
  // The guardian is forked with them blocked: it must outlive a launcher that they end.
  signals_.block_all();
  guardian_.emplace(job_.folder());
  const JobPlan& plan = job_.plan();
  if (!plan.respawn) return;
  Survivors survivors(plan.node_of, plan.addresses, *plan.respawn);
  job_.publish(dist::write_generation(survivors.generation()));
  if (plan.node != 0) return;
  survivors_ = std::move(survivors);
  nodes_.ask_before_losing(
      [this](int node, const std::string& how) { return may_lose_node(node, how); });
}

void Launcher::start() {
  try {
    for (int rank = 0; rank < options_.ranks; ++rank) start_one();
    if (options_.verbose) tell_processes();
  } catch (const Error& error) {
    const std::string report = fmt::format("error: node {}: {}\n", job_.plan().node, error.what());
    nodes_.leave({1, report, Cause::failed});
    throw;
  }
}

void Launcher::tell_processes() const {
  std::string text = fmt::format("launcher: process {}\n", getpid());
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    text += fmt::format("rank {}: process {}\n", job_.plan().number(std::ptrdiff_t(r)),
                        ranks_[r].process);
  dist::write_all(STDERR_FILENO, text);
}

void Launcher::start_one() {
  const int place = static_cast<int>(ranks_.size());
  const bool first = job_.plan().number(place) == 0;
  const Descriptor record = dist::moved_up(open_stream(StreamKind::record));
  const Descriptor input = first ? input_.open() : Descriptor();
  Descriptor output, error;  // empty: the launcher's own
  if (options_.prefix) output = open_stream(StreamKind::output);
  if (options_.prefix || !first) error = open_stream(StreamKind::error);
  std::vector<int> inherited = job_.inherited();
  inherited.push_back(record.get());
  ranks_.push_back(
      {.process = start_rank({.command = command_,
                              .environment = job_.environment(place, record.get(), restart_),
                              .lifeline = guardian_->lifeline(),
                              .standard_input = input.get(),
                              .standard_output = output.get(),
                              .standard_error = error.get(),
                              .inherited = inherited,
                              .signal_mask = signals_.mask_before()})});
  outcomes_.emplace_back();
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
// for a second at most, because where no process reaps orphans their group exists for ever.
Launcher::~Launcher() {
  signal_all(SIGKILL);
  for (const Rank& rank : ranks_) TEMP_FAILURE_RETRY(waitpid(rank.process, nullptr, 0));
  const Deadline deadline(Seconds(1));
  for (const Rank& rank : ranks_)
    while (kill(-rank.process, 0) == 0 && !deadline.passed()) usleep(1000);
}

JobResult Launcher::run() {
  // The other nodes' ranks must have ended as well, unless the user wants to leave before.
  while (!ranks_finished() || !nodes_.result()) {
    wait_for_events();
    input_.pass_on();
    for (Stream& stream : streams_)
      if (stream.end) read_stream(stream);
    take_signal();  // before collect_ended(): a rank that ends after that causes one more SIGCHLD
    collect_ended();
    look_for_silent();
    nodes_.receive();
    take_messages();
    if (nodes_.stopping() && ended_ < ranks_.size()) plan_to_stop();
    if (ranks_finished() && !nodes_.reported()) nodes_.report(own_result());
    if (leaves_by_ && nodes_.reported() && !nodes_.result())
      nodes_.leave(interrupted_by(*leaves_by_, job_.plan()));
    send_due_signals();
  }
  const JobResult& result = *nodes_.result();
  // A rank that was killed may have left a progress bar on the terminal's line.
  if (!result.report.empty() && isatty(STDERR_FILENO)) dist::write_all(STDERR_FILENO, "\r\x1b[K");
  dist::write_all(STDERR_FILENO, result.report);
  return result;
}

// All ranks and their streams have ended. A stream that stays open belongs to a process that a rank
// left behind; it may write until the closing time.
bool Launcher::ranks_finished() const {
  if (ended_ < ranks_.size()) return false;
  if (!nodes_.stopping() && std::ranges::any_of(ranks_, &Rank::asked)) return false;
  const auto open = [](const Stream& stream) { return bool(stream.end); };
  return std::ranges::none_of(streams_, open) || closing_time_->passed();
}

// Blocks until a rank writes or ends, a signal or a message comes, or something is due.
void Launcher::wait_for_events() {
  std::vector<pollfd> sources{{signals_.descriptor(), POLLIN, 0}};
  for (const Stream& stream : streams_)
    if (stream.end) sources.push_back({stream.end.get(), POLLIN, 0});
  nodes_.add_sources(sources);
  input_.add_sources(sources);
  int timeout = 1000;  // milliseconds; nodes_ has its own deadlines
  if (closing_time_ && !closing_time_->passed())
    timeout = std::min(timeout, closing_time_->milliseconds());
  if (!schedule_.empty()) timeout = std::min(timeout, static_cast<int>(longest_nap.count() * 500));
  const int ready = poll(sources.data(), sources.size(), timeout);
  if (ready < 0 && errno != EINTR) dist::checked(ready, "wait for the ranks");
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
  RankOutcome& outcome = outcomes_[stream.rank];
  const int number = job_.plan().number(std::ptrdiff_t(stream.rank));
  if (ranks_[stream.rank].lost) return;
  if (stream.kind == StreamKind::record) {
    if (const auto event = RankEvent::read(line)) take_told(stream.rank, *event);
  } else if (options_.prefix) {
    pass_on(stream.kind, fmt::format("[{}] {}\n", number, line));
  } else if (ranks_[stream.rank].shown) {
    pass_on(stream.kind, fmt::format("{}\n", line));
  } else {
    outcome.last_lines.emplace_back(line);
    if (outcome.last_lines.size() > tail_lines) outcome.last_lines.pop_front();
  }
}

// The program may write into the pipe, too: what a rank cannot know is not believed. Nothing here
// starts a rank: references into streams_ and outcomes_ stay good.
void Launcher::take_told(std::size_t place, RankEvent event) {
  RankOutcome& outcome = outcomes_[place];
  using enum RankEvent::Kind;
  if (event.kind > RankEvent::last_told) return;
  if (event.kind == suspected && event.failure.blame.ranks != std::vector{event.rank}) return;
  if (event.kind != suspected) event.rank = job_.plan().number(std::ptrdiff_t(place));
  switch (event.kind) {
    case survives: outcome.survives = true; return;
    case world_begins:
    case works:
    case world_ends: return take_world(place, event);
    case replica: return outcome.replicas.push_back(event.replica);
    case failed:
      if (!outcome.record) outcome.record = event.failure;
      return;
    case joined: outcome.replicas.clear(); break;
    default: break;
  }
  hear(event);
}

// Output that is lost ends the job. What cannot be written to stderr is dropped: who could be told?
void Launcher::pass_on(StreamKind kind, const std::string& text) {
  if (kind == StreamKind::error) {
    dist::write_all(STDERR_FILENO, text);
  } else if (output_error_ == 0) {
    output_error_ = dist::write_all(STDOUT_FILENO, text);
    if (output_error_ != 0 && ended_ < ranks_.size()) plan_to_stop();
  }
}

// Finds the ranks that have ended, without reaping them (see the destructor).
void Launcher::collect_ended() {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    siginfo_t info{};
    if (rank.ended) continue;
    if (waitid(P_PID, static_cast<id_t>(rank.process), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      continue;
    rank.ended = true;
    RankOutcome& outcome = outcomes_[r];
    outcome.order = static_cast<int>(ended_++);
    (info.si_code == CLD_EXITED ? outcome.exit_code : outcome.signal) = info.si_status;
    outcome.out_of_memory =
        outcome.killed() && kills_before_ && out_of_memory_kills() > kills_before_;
    const int number = job_.plan().number(std::ptrdiff_t(r));
    if (rank.hung) outcome = hung_outcome(r);
    const bool losable = job_.plan().respawn && (outcome.signal != 0 || outcome.killed());
    outcome.stopped = told_to_stop_ || (losable && ends());
    if (losable && !ends()) {
      rank.asked = true;
      hear({RankEvent::Kind::killed, number, outcome.signal != 0 ? outcome.signal : SIGKILL});
    } else if (outcome.failed()) {
      plan_to_stop();
    } else {
      hear({RankEvent::Kind::ended_well, number});
    }
  }
  if (ended_ < ranks_.size())
    closing_time_.reset();  // there is a new one
  else if (!closing_time_)
    closing_time_ = Deadline(notice);
}

// A rank has failed, here or on another node.
void Launcher::plan_to_stop() {
  nodes_.stop();
  if (!schedule_.empty() || told_to_stop_) return;
  schedule({{notice, SIGTERM}, {notice + options_.grace, SIGKILL}});
}

void Launcher::take_signal() {
  const auto [number, stop, more] = signals_.take();
  if (stop) suspend();
  if (more > 0 && !ends()) want_ranks(more);
  if (!number || interrupted_by_) return;
  if (ended_ == ranks_.size()) {
    leaves_by_ = *number;
    return;
  }
  interrupted_by_ = *number;
  nodes_.stop();
  schedule({{Seconds(0), *number}, {options_.grace, SIGKILL}});
}

// The terminal's Ctrl-Z reaches the launcher alone, because every rank has its own group.
void Launcher::suspend() {
  signal_all(SIGSTOP);  // not SIGTSTP, which a group without a shell ignores
  kill(getpid(), SIGSTOP);
  signal_all(SIGCONT);  // a SIGCONT has let the launcher continue
}

// The times are from now on.
void Launcher::schedule(std::deque<TimedSignal> signals) {
  clock_.restart();
  schedule_ = std::move(signals);
}

void Launcher::send_due_signals() {
  if (schedule_.empty()) return;
  const Seconds now = clock_.look(std::chrono::steady_clock::now().time_since_epoch());
  while (!schedule_.empty() && schedule_.front().when <= now) {
    told_to_stop_ = true;
    signal_all(schedule_.front().number);
    schedule_.pop_front();
  }
}

// Of the ranks of this node.
JobResult Launcher::own_result() const {
  const auto by_itself = [](const RankOutcome& rank) { return rank.failed() && !rank.stopped; };
  std::vector<RankOutcome> outcomes = outcomes_;
  for (std::size_t r = 0; r < outcomes.size(); ++r) {  // others could have gone on without it
    outcomes[r].stopped = outcomes[r].stopped || ranks_[r].asked;
    outcomes[r].left_behind = ranks_changed_ && !outcomes[r].survives;
  }
  if (std::ranges::any_of(outcomes, by_itself)) return result_of(outcomes, job_.plan());
  if (interrupted_by_) return interrupted_by(interrupted_by_, job_.plan());
  if (output_error_ == 0) return result_of(outcomes, job_.plan());
  const std::string who = job_.plan().nodes == 1 ? "" : fmt::format("node {}: ", job_.plan().node);
  return {1,
          fmt::format("error: {}cannot write to stdout: {}\n", who,
                      dist::system_message(output_error_)),
          Cause::failed};
}

}  // namespace lockstep::launch
