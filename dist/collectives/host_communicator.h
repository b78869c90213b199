#pragma once
/// The communicator for tensors in host memory, over any transport. Calls wait in a queue; the one
/// at the front is carried out by an Executor whenever somebody progresses or waits.
///
/// Determinism: "ring" gives the same bits for the same calls, "hierarchical" also for any cut of
/// the elements into calls, all others the same bits as each other, on any transport. All ranks get
/// the same bits. f16 and bf16 are added up in f32 and rounded once, so never by an algorithm that
/// passes sums on: if one was asked for, they take "direct".
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

#include "lockstep/dist/collectives/choice.h"
#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/collectives/executor.h"

namespace lockstep::dist {

struct CommunicatorOptions {
  Algorithm algorithm =
      Algorithm::automatic;  ///< what all-reduces ask for (dist/collectives/choice.h)
  Seconds timeout{60};       ///< without any byte moving
  NodeMap nodes = {};        ///< empty: all ranks on one machine
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
  Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) override;

  /// Agrees with the other ranks on a call whose data travel elsewhere, between GPUs: compares
  /// headers, and is done when all ranks have called it, as far as this rank can tell.
  Work validate_call(Operation operation, const Tensor& data, int root, std::string_view name,
                     RegionPlace place);

  /// Measures what hops and bytes cost here, so that the choice of algorithms stands on that rather
  /// than on constants; all ranks take rank 0's figures. Collective; some milliseconds.
  void tune();
  const Choice& choice() const { return choice_; }
  Seconds timeout() const { return options_.timeout; }

  void abort(std::string_view reason) noexcept override;
  std::string_view algorithm(std::size_t bytes, DType dtype = DType::f32) const override;

  std::string choices() const override {
    return describe_choices(choice_, transport_->has_shared_memory());
  }

  Seconds now() const override { return transport_->now(); }
  Seconds waited() const override { return linked_ ? waited_ + linked_->waited() : waited_; }
  std::uint64_t bytes_moved() const override { return executor_.bytes_moved(); }

  std::string flight_record() const override { return recorder_.text(now()); }

  bool progress(std::uint64_t sequence) override;
  void wait(std::uint64_t sequence, std::optional<Seconds> timeout) override;
  std::exception_ptr failure(std::uint64_t sequence) const override;

  Transport& transport() const { return *transport_; }

 private:
  struct Call {
    Collective collective;
    Tensor buffer, part;  // keep its memory alive
    std::array<char, 48> name{};
  };

  Work enqueue(Operation operation, const Tensor& buffer, const Tensor& part, int root,
               std::string_view name);
  /// The next call of the queue, described; and its way into execution.
  Call& prepare(Operation operation, const Tensor& data, int root, std::string_view name);
  Work start(Call& call);
  void place_in_region(Call& call) const;
  Call& call(std::uint64_t sequence) { return queue_[sequence % queue_length]; }

  /// Carries on with the calls in the queue; true if anything moved. Throws if that fails. `timed`:
  /// look at the clock when one ends.
  bool advance(bool timed = true);
  /// Transport::relax, but for its errors.
  void relax(unsigned round);
  /// Breaks the communicator, tells the other ranks, and throws: this rank's own error, or the
  /// `echo` of another's. `call` is the one it happened in: "#17 'bucket 0'".
  [[noreturn]] void give_up(bool echo, std::string_view operation, std::string_view call,
                            std::string_view why);
  /// The same for the call at the front.
  [[noreturn]] void give_up(bool echo, std::string_view why);

  std::unique_ptr<Transport> transport_;
  CommunicatorOptions options_;
  Choice choice_;
  FlightRecorder recorder_;
  Executor executor_;
  std::vector<SharedRegion> regions_;
  std::vector<Call> queue_;
  std::uint64_t front_ = 0;  // the call being carried out: all before it are done
  std::uint64_t next_ = 0;   // the number of the next call
  bool started_ = false;     // the executor has begun with the front call
  Seconds waited_{0};
  Seconds finished_{0};  // when the last call ended
  std::exception_ptr failure_;
};

}  // namespace lockstep::dist
