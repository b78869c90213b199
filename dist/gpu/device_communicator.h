#pragma once
/// The communicator of a build that drives GPUs. Tensors on the host go to the HostCommunicator
/// that it is made over; tensors on a GPU go to an engine (dist/gpu/device_engine.h), on a separate
/// stream:
///
///   compute stream  --kernels--|ready            |next kernels ...        wait(): an event
///                               \               /
///   communication    ............|--all-reduce--|done                     the host only enqueues
///   stream
///   host streams     ............|--headers--|                            compared with the peers'
///
/// A GPU cannot say which rank it waits for. Therefore the host compares the headers of every call
/// before its data travel: calls that differ and ranks that do not come are named, and timeouts
/// hold.
///
/// Work::wait makes the calling thread's current stream wait, not the host, and has no timeout.
/// Work::finish makes the host wait, with the timeout; so does what reads a result behind a call
/// (core/gpu/host_wait.h). A call may be part of a recorded step
/// (core/gpu/graph.h): its header is compared when it is recorded, not at each replay. Replays run
/// on the step's stream, after the calls that were under way before.
///
/// The engine is made when the first tensor on a GPU arrives. The communicator then belongs to that
/// GPU: DeviceError for tensors on another one.

#include <functional>
#include <memory>

#include "lockstep/core/gpu/host_wait.h"
#include "lockstep/dist/gpu/device_engine.h"

namespace lockstep::dist {

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::unique_ptr<HostCommunicator> host, EngineKind kind);
  ~DeviceCommunicator() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) override;

  void abort(std::string_view reason) noexcept override;
  std::string_view algorithm(std::size_t bytes, DType dtype = DType::f32) const override {
    return engine_ ? engine_->algorithm() : host_->algorithm(bytes, dtype);
  }
  void add_in_tree_order() override {
    host_->add_in_tree_order();
    Communicator::add_in_tree_order();
  }
  std::string choices() const override {
    return engine_ ? Communicator::choices() : host_->choices();
  }
  std::shared_ptr<void> begin_work() override { return host_->begin_work(); }
  bool hears_of_work() const override { return host_->hears_of_work(); }
  Seconds now() const override { return host_->now(); }
  Seconds waited() const override { return host_->waited(); }
  std::uint64_t bytes_moved() const override { return host_->bytes_moved() + bytes_moved_; }
  void link_failure(Communicator& linked) override {
    Communicator::link_failure(linked);
    host_->link_failure(linked);
  }
  std::string flight_record() const override { return host_->flight_record(); }

 private:
  struct Call {
    std::uint64_t sequence = 0;
    Work validation{};
    CollectiveCall arguments{};  // keeps its memory alive
    std::optional<Event> ready{}, done{};
    bool recorded = false;  // in a graph: its events cannot be asked
  };

  Work enqueue(const CollectiveCall& arguments, std::string_view name) override;
  bool progress(std::uint64_t sequence) override;
  void wait(std::uint64_t sequence, std::optional<Seconds> timeout) override;
  void finish(std::uint64_t sequence, std::optional<Seconds> timeout) override;

  DeviceEngine* engine_for(Device device);
  Call& call(std::uint64_t sequence) { return calls_[sequence % calls_.size()]; }
  /// The place of the next call in the queue. Waits for the oldest call while the queue is full.
  Call& next_call();
  void launch(Call& call, const CollectiveCall& arguments);
  void wait_before_replay();
  bool ended(Call& call);
  void release_ended();
  /// Makes the host wait until the GPU has `done` it; `what` is in the messages of errors.
  void wait_for(const Event& event, std::string_view what) override {
    wait_on_host([&] { return event.done(); }, what, host_->timeout());
  }
  void wait_on_host(const std::function<bool()>& done, std::string_view what, Seconds limit);
  /// The thread waits for a stream, which may wait for a call.
  void wait_beside(const std::function<bool()>& done);
  /// Leaves the processor to others for a while, the longer the more rounds.
  void relax(unsigned round, std::string_view what);
  std::uint64_t payload(const CollectiveCall& arguments) const;
  /// Throws what broke this communicator; asks the host's communicator and the engine for failures.
  void check_health();
  template <class E>
  [[noreturn]] void give_up(const std::string& reason);
  /// Breaks this communicator by its first failure: tells the other ranks and releases the streams.
  void break_by(std::exception_ptr failure, std::string_view reason) noexcept;
  /// Which rank is gone, when this communicator cannot be used any more.
  std::string missing_rank(std::string_view else_say = "all ranks have called it");

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
  std::shared_ptr<gpu::HostWait> wait_ = std::make_shared<gpu::HostWait>(
      [this](const std::function<bool()>& done) { wait_beside(done); });
};

}  // namespace lockstep::dist
