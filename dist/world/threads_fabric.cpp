#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/gpu/device_communicator.h"
#include "lockstep/dist/world/fabrics.h"

namespace lockstep::dist {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

/// What the ranks of one group share. The rank that comes first makes what all of them take.
class Meeting {
 public:
  Meeting(int size, const ThreadsOptions& streams) : size_(size), streams_(streams) {}

  int size() const { return size_; }

  /// The transport of this rank in the `number`-th connection among all.
  std::unique_ptr<Transport> take(int number, int rank) {
    const std::lock_guard lock(mutex_);
    Transports& transports = connections_[number];
    if (transports.empty()) transports = threads_transports(size_, streams_);
    return std::move(transports[index(rank)]);
  }

  /// The meeting of the group with this color in the `number`-th split.
  std::shared_ptr<Meeting> group(int number, int color, int size) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Meeting>& group = groups_[{number, color}];
    if (!group) group = std::make_shared<Meeting>(size, streams_);
    return group;
  }

 private:
  const int size_;
  const ThreadsOptions streams_;
  std::mutex mutex_;
  std::map<int, Transports> connections_;
  std::map<std::pair<int, int>, std::shared_ptr<Meeting>> groups_;
};

class ThreadsFabric final : public Fabric {
 public:
  ThreadsFabric(std::shared_ptr<Meeting> meeting, int rank, const FabricOptions& options)
      : meeting_(std::move(meeting)), rank_(rank), options_(options) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  std::string_view transport() const override { return "threads"; }

  std::unique_ptr<Communicator> connect() override {
    return make_communicator(meeting_->take(connections_++, rank_), options_);
  }

  std::shared_ptr<Fabric> split(int color) override {
    make_control();
    const Tensor mine = Tensor::full({1}, color, DType::i64);
    const Tensor all = Tensor::empty({size()}, DType::i64);
    control_->all_gather(mine, all, "split").wait();
    const int number = splits_++;
    if (color < 0) return nullptr;
    const auto colors = all.span<std::int64_t>();
    const auto members = std::ranges::count(colors, color);
    const auto before = std::ranges::count(colors.first(index(rank_)), color);
    return std::make_shared<ThreadsFabric>(
        meeting_->group(number, color, static_cast<int>(members)), static_cast<int>(before),
        options_);
  }

  void abort(std::string_view reason) noexcept override {
    try {
      make_control();
      control_->abort(reason);
    } catch (const std::exception&) {  // no memory: the others will time out
    }
  }

 private:
  static constexpr int control_number = -1;  // no other connection's
  void make_control() {
    if (!control_) control_.emplace(meeting_->take(control_number, rank_), options_.communicator);
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
  FabricOptions options_;
  std::optional<HostCommunicator> control_;
  int connections_ = 0, splits_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::unique_ptr<Transport> transport,
                                                const FabricOptions& options) {
  auto host = std::make_unique<HostCommunicator>(std::move(transport), options.communicator);
  if (!gpu::kind()) return host;
  return std::make_unique<DeviceCommunicator>(std::move(host), options.engine);
}

std::vector<std::shared_ptr<Fabric>> threads_fabrics(int size, const ThreadsOptions& streams,
                                                     const FabricOptions& options) {
  check<UsageError>(size >= 1, "[world] a world has at least 1 rank, got {}", size);
  const auto meeting = std::make_shared<Meeting>(size, streams);
  std::vector<std::shared_ptr<Fabric>> fabrics;
  for (int rank = 0; rank < size; ++rank)
    fabrics.push_back(std::make_shared<ThreadsFabric>(meeting, rank, options));
  return fabrics;
}

}  // namespace lockstep::dist
