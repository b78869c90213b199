#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/gpu/device_communicator.h"
#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/dist/world/fabrics.h"

namespace lockstep::dist {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

/// What the ranks of one group share. The rank that comes first makes what all of them take.
class Meeting {
 public:
  Meeting(int size_, const FabricOptions& options_)
      : size(size_), options(options_), left_(index(size_)) {}

  const int size;
  const FabricOptions options;

  /// The transport of this rank in the `number`-th connection among all.
  std::unique_ptr<Transport> take(int number, int rank) {
    const std::lock_guard lock(mutex_);
    auto found = connections_.find(number);
    if (found == connections_.end()) {  // added when it is whole: memory may be short
      Transports made = threads_transports(size, {.join_timeout = options.communicator.timeout});
      for (std::size_t r = 0; r < left_.size(); ++r)
        if (left_[r]) made[r].reset();
      if (!aborted_.empty()) made[index(rank)]->abort(aborted_);
      found = connections_.emplace(number, std::move(made)).first;
    }
    std::unique_ptr<Transport> mine = std::move(found->second[index(rank)]);
    if (std::ranges::none_of(found->second, [](const auto& t) { return t != nullptr; }))
      connections_.erase(found);  // every rank has its own
    return mine;
  }

  // Connections that a rank will not come to. The others must not wait for it there.
  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[index(rank)] = true;
    for (auto& [number, transports] : connections_) transports[index(rank)].reset();
  }
  void abort(int rank, std::string_view reason) {
    const std::lock_guard lock(mutex_);
    for (auto& [number, transports] : connections_)
      if (transports[index(rank)]) transports[index(rank)]->abort(reason);
    if (aborted_.empty()) aborted_ = reason;
  }

  /// The meeting of the group with these members in the `number`-th split.
  std::shared_ptr<Meeting> group(int number, const std::vector<int>& members) {
    const std::lock_guard lock(mutex_);
    const auto count = static_cast<int>(members.size());
    const auto found = groups_.try_emplace({number, members.front()}).first;
    auto& [meeting, came] = found->second;
    if (!meeting) meeting = std::make_shared<Meeting>(count, options);
    const std::shared_ptr<Meeting> group = meeting;
    if (++came == count) groups_.erase(found);
    return group;
  }

 private:
  std::mutex mutex_;
  std::map<int, Transports> connections_;  // that ranks are still to come to
  std::vector<bool> left_;                 // by rank
  std::string aborted_;                    // why a rank gave up; empty: none did
  std::map<std::pair<int, int>, std::pair<std::shared_ptr<Meeting>, int>> groups_;  // who came
};

class ThreadsFabric final : public Fabric {
 public:
  /// `board` of this rank in the job, `members` as in CommunicatorOptions.
  ThreadsFabric(std::shared_ptr<Meeting> meeting, int rank, std::shared_ptr<WaitBoard> board,
                const std::vector<int>& members = {})
      : meeting_(std::move(meeting)), rank_(rank), options_(meeting_->options) {
    options_.communicator.board = std::move(board);
    options_.communicator.members = members;
  }
  ~ThreadsFabric() override { meeting_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size; }
  std::string_view transport() const override { return "threads"; }

  std::unique_ptr<Communicator> connect() override {
    return make_communicator(meeting_->take(connections_++, rank_), options_);
  }

  std::shared_ptr<Fabric> split(const std::vector<int>& members) override {
    const int number = splits_++;
    if (members.empty()) return nullptr;
    const auto place = std::ranges::find(members, rank_) - members.begin();
    const CommunicatorOptions& options = options_.communicator;
    return std::make_shared<ThreadsFabric>(meeting_->group(number, members),
                                           static_cast<int>(place), options.board,
                                           members_in_job(members, options.members));
  }

  void abort(std::string_view reason) noexcept override {
    try {
      meeting_->abort(rank_, reason);
    } catch (const std::exception&) {  // no memory: the others see that this rank left
    }
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_;
  FabricOptions options_;
  int connections_ = 0, splits_ = 0;
};

}  // namespace

std::vector<int> members_in_job(std::vector<int> members, const std::vector<int>& of_parent) {
  if (!of_parent.empty())
    for (int& rank : members) rank = of_parent[index(rank)];
  return members;
}

std::unique_ptr<Communicator> make_communicator(std::unique_ptr<Transport> transport,
                                                const FabricOptions& options) {
  auto host = std::make_unique<HostCommunicator>(std::move(transport), options.communicator);
  if (!gpu::kind()) return host;
  return std::make_unique<DeviceCommunicator>(std::move(host), options.engine);
}

std::vector<std::shared_ptr<Fabric>> threads_fabrics(int size, const FabricOptions& options) {
  check<UsageError>(size >= 1, "[world] a world has at least 1 rank, got {}", size);
  const auto meeting = std::make_shared<Meeting>(size, options);
  const auto boards = threads_wait_boards(size);
  std::vector<std::shared_ptr<Fabric>> fabrics;
  for (int rank = 0; rank < size; ++rank)
    fabrics.push_back(std::make_shared<ThreadsFabric>(meeting, rank, boards[index(rank)]));
  return fabrics;
}

void tell_who_runs_on(const std::vector<int>& ranks, Seconds patience,
                      const std::exception_ptr& failure) {
  std::string why;
  try {
    std::rethrow_exception(failure);
  } catch (...) {
    why = current_failure().record.text();
  }
  write_all(
      STDERR_FILENO,
      visible(fmt::format(
          "error: [run_threads] {}, {:g} s after the others failed: {} (a thread cannot be ended "
          "from outside: run_threads waits for it)",
          describe_ranks(ranks, "still running"), patience.count(), why)) +
          "\n");
}

}  // namespace lockstep::dist
