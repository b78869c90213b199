#pragma once
/// The communicator for tensors in host memory, over any transport. Calls wait in a queue; the one
/// at the front is carried out by an Executor whenever somebody progresses or waits.
///
/// Determinism: "direct" gives the same bits for any transport and any cut of the elements into
/// calls; "ring" the same bits for the same calls. All ranks get the same bits.
///
/// Memory: a tensor of allocate(), or a slice of one, is reduced in place where the transport has
/// shared memory, without any copy; it must then lie at the same place of the same allocation on
/// every rank. Any other tensor travels through the streams. Allocations live until both the
/// communicator and the last tensor over them are gone.
///
/// At most `queue_length` calls can be waiting; a further one first waits for the oldest.

#include <array>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/dist/communicator.h"
#include "lockstep/dist/executor.h"

namespace lockstep::dist {

struct CommunicatorOptions {
  Algorithm algorithm = Algorithm::automatic;  ///< automatic, ring or direct
  Seconds timeout{60};                         ///< without any byte moving
};

class HostCommunicator final : public Communicator {
 public:
  static constexpr std::size_t queue_length = 256;

  explicit HostCommunicator(std::unique_ptr<Transport> transport, CommunicatorOptions options = {});

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }

  Work all_reduce(const Tensor& data, std::string_view name) override;
  Work reduce_scatter(const Tensor& input, const Tensor& output, std::string_view name) override;
  Work all_gather(const Tensor& input, const Tensor& output, std::string_view name) override;
  Work broadcast(const Tensor& data, int root, std::string_view name) override;
  Work barrier(std::string_view name) override;
  Tensor allocate(std::int64_t numel, DType dtype) override;

  void abort(std::string_view reason) noexcept override;
  std::string_view algorithm(std::size_t bytes) const override;

  Seconds now() const override { return transport_->now(); }
  Seconds waited() const override { return companion_ ? waited_ + companion_->waited_ : waited_; }

  std::string flight_record() const override { return recorder_.text(now()); }

  bool progress(std::uint64_t sequence) override;
  void wait(std::uint64_t sequence, std::optional<Seconds> timeout) override;
  std::exception_ptr failure(std::uint64_t sequence) const override;

  Transport& transport() const { return *transport_; }

  /// When this communicator breaks, its ranks stop waiting in `companion`, too; and the time that
  /// they wait there counts as waited here. `companion` must not be gone before this one is used
  /// for the last time.
  void share_fate(HostCommunicator& companion) { companion_ = &companion; }

 private:
  struct Call {
    Job job;
    Tensor buffer, part;  // keep the job's memory alive
    std::array<char, 48> name{};
  };

  Work enqueue(Operation operation, const Tensor& buffer, const Tensor& part, int root,
               std::string_view name);
  void place_in_window(Call& call) const;
  Call& call(std::uint64_t sequence) { return queue_[sequence % queue_length]; }

  /// Carries on with the calls in the queue; true if anything moved. Throws if that fails.
  bool advance();
  /// Breaks the communicator, tells the other ranks, and throws: this rank's own error, or the
  /// `echo` of another's. `call` is the one it happened in: "#17 'bucket 0'".
  [[noreturn]] void give_up(bool echo, std::string_view operation, std::string_view call,
                            std::string_view why);
  /// The same for the call at the front.
  [[noreturn]] void give_up(bool echo, std::string_view why);

  std::unique_ptr<Transport> transport_;
  CommunicatorOptions options_;
  FlightRecorder recorder_;
  Executor executor_;
  std::vector<Window> windows_;
  std::vector<Call> queue_;
  std::uint64_t front_ = 0;  // the call being carried out: all before it are done
  std::uint64_t next_ = 0;   // the number of the next call
  bool started_ = false;     // the executor has begun with the front call
  Seconds waited_{0};
  HostCommunicator* companion_ = nullptr;
  std::exception_ptr failure_;
};

}  // namespace lockstep::dist
