#pragma once
/// The communicator of a build that drives GPUs: tensors on the host go to the HostCommunicator it
/// is made over, tensors on a GPU to an engine (dist/gpu/device_engine.h), on a stream of their own:
///
///   compute stream  --kernels--|ready            |next kernels ...        wait(): an event
///                               \               /
///   communication    ............|--all-reduce--|done                     the host only enqueues
///   stream
///   host streams     ............|--headers--|                         validation to the peers
///
/// So every call is known on the host before its data travel: the ranks compare what they call, a
/// rank that does not come is named, and timeouts hold, although no GPU can be asked.
///
/// Work::wait makes the calling thread's current stream wait, not the host. Work::finish makes the
/// host wait, with the timeout. A call may be part of a recorded step (core/gpu/graph.h): it is
/// validation when it is recorded, not at each replay.
///
/// The engine is made when the first tensor on a GPU comes.

#include <memory>

#include "lockstep/dist/gpu/device_engine.h"

namespace lockstep::dist {

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::unique_ptr<HostCommunicator> host, EngineKind kind);
  ~DeviceCommunicator() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  Work all_reduce(const Tensor& data, std::string_view name) override;
  Work reduce_scatter(const Tensor& input, const Tensor& output, std::string_view name) override;
  Work all_gather(const Tensor& input, const Tensor& output, std::string_view name) override;
  Work broadcast(const Tensor& data, int root, std::string_view name) override;
  Work barrier(std::string_view name) override { return host_->barrier(name); }
  Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) override;

  void abort(std::string_view reason) noexcept override;
  std::string_view algorithm(std::size_t bytes, DType dtype = DType::f32) const override;
  std::string choices() const override {
    return engine_ ? Communicator::choices() : host_->choices();
  }
  Seconds now() const override { return host_->now(); }
  Seconds waited() const override { return host_->waited(); }
  std::uint64_t bytes_moved() const override { return host_->bytes_moved() + bytes_moved_; }
  void link_failure(Communicator& linked) override { host_->link_failure(linked); }
  std::string flight_record() const override { return host_->flight_record(); }

  bool progress(std::uint64_t sequence) override;
  void wait(std::uint64_t sequence, std::optional<Seconds> timeout) override;
  void finish(std::uint64_t sequence, std::optional<Seconds> timeout) override;
  std::exception_ptr failure(std::uint64_t sequence) const override;

 private:
  struct Call {
    std::uint64_t sequence = 0;
    Work validation{};
    DeviceCollective job{};  // keeps its memory alive
    std::optional<Event> ready{}, done{};
    bool recorded = false;  // in a graph: its events cannot be asked
  };

  Work enqueue(DeviceCollective job, std::string_view name);
  DeviceEngine* engine_for(Device device);
  Call& call(std::uint64_t sequence) { return calls_[sequence % calls_.size()]; }
  bool ended(Call& call);
  void release_ended();
  void finish_replays();
  std::uint64_t payload(const DeviceCollective& job) const;
  /// Throws what broke this communicator; looks whether the host's one or the engine has failed.
  void check_health();
  [[noreturn]] void give_up(const std::string& reason);
  /// Breaks this communicator by its first failure: tells the other ranks and releases the streams.
  void break_by(std::exception_ptr failure, std::string_view reason) noexcept;
  /// Which rank is gone, when this communicator can be used no more.
  std::string whereabouts();

  std::unique_ptr<HostCommunicator> host_;
  EngineKind kind_;
  std::unique_ptr<DeviceEngine> engine_;
  Device device_{};
  bool asked_ = false;  // for an engine; there may be none
  std::optional<Stream> stream_;
  std::optional<Stream> replays_;  // where recorded steps run, with calls of this communicator
  std::vector<Call> calls_;
  std::uint64_t next_ = 0;
  std::uint64_t released_ = 0;  // calls before it hold no tensors
  std::uint64_t bytes_moved_ = 0;
  std::exception_ptr failure_;
};

}  // namespace lockstep::dist
