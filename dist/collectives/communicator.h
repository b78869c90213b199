#pragma once
/// Collectives among the ranks of a world.
///
/// Every rank calls the same collectives in the same order. A call returns at once with a Work; the
/// collective is carried on whenever any Work of its communicator is progressed or waited for,
/// strictly in the order of the calls. Work::wait and allocate() block, and so does a call while
/// the queue of its communicator is full.
///
/// Every call carries a header (sequence number, operation, dtype, count, name) that is compared
/// with the other ranks' before any of their data is used.
///
/// After an error (a lost peer, a timeout, a mismatch) the communicator is broken: this and every
/// later Work throws the same error. The contents of the tensors involved are then undefined.
///
/// Thread-safety: a communicator belongs to one rank and is used by one thread at a time.

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/tensor.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

class Communicator;

/// A collective on its way. A small value; dropping it does not stop the collective. It must not
/// outlive its communicator.
class Work {
 public:
  Work() = default;  ///< already done
  Work(Communicator* communicator, std::uint64_t sequence)
      : communicator_(communicator), sequence_(sequence) {}

  /// Moves what can be moved without waiting; true once the collective has ended well. Throws if it
  /// failed.
  bool progress();
  /// Progresses until done; then the host may use the tensors (on a GPU: the current stream, from
  /// now on). Throws CommError if nothing moved for `timeout`, which is the
  /// communicator's unless one is given.
  void wait(std::optional<Seconds> timeout = {});
  /// The same for a tensor on a GPU too, where wait() makes the current stream wait and not the
  /// host: when this returns, the collective has ended.
  void finish(std::optional<Seconds> timeout = {});
  /// What it failed with, or null.
  std::exception_ptr exception() const;

 private:
  Communicator* communicator_ = nullptr;
  std::uint64_t sequence_ = 0;
};

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Part `index` of `count` elements cut into `parts`: sizes differ by at most one, larger parts
/// first; if there are fewer elements than parts, the last parts are empty. The parts in order are
/// [0, count). A pure function, not checked: count >= 0, parts >= 1, 0 <= index < parts.
Range partition(std::int64_t count, int parts, int index);

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// data := sum over ranks, in place, on every rank the same bits. f32, f64, i32 or i64; f16 and
  /// bf16 are added up in f32 and rounded once. DTypeError for others.
  virtual Work all_reduce(const Tensor& data, std::string_view name) = 0;
  /// output := this rank's part of the sum over ranks; output.numel() is
  /// partition(input.numel(), size(), rank()).size(). The input is overwritten (it is the
  /// workspace).
  virtual Work reduce_scatter(const Tensor& input, const Tensor& output, std::string_view name) = 0;
  /// output := the ranks' inputs one after another; input.numel() is
  /// partition(output.numel(), size(), rank()).size().
  virtual Work all_gather(const Tensor& input, const Tensor& output, std::string_view name) = 0;
  /// data := root's data. Any dtype.
  virtual Work broadcast(const Tensor& data, int root, std::string_view name) = 0;
  /// Ends when every rank has called it.
  virtual Work barrier(std::string_view name) = 0;

  /// A zeroed tensor in memory that the transport reaches without a copy: on `device` if this
  /// communicator reaches it, else on the host. Called by all ranks in the same order with the same
  /// size; where ranks share memory, it blocks until all have called.
  virtual Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) = 0;

  /// Gives up: breaks this communicator, so that this rank's unfinished and later Works throw
  /// CommError with `reason`, and tells the other ranks, whose Works throw PeerError with it. For a
  /// rank that leaves an agreed sequence of calls, by an exception say. Does nothing if it is
  /// broken already; does not block.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// The algorithm that an all_reduce of so many bytes takes: "direct", "ring", ... A pure function
  /// of the bytes, of the elements' type and of what was chosen at construction.
  virtual std::string_view algorithm(std::size_t bytes, DType dtype = DType::f32) const = 0;

  /// Which algorithms all-reduces take, by size: "up to 64 KiB one-shot; beyond shared".
  virtual std::string choices() const { return "always " + std::string(algorithm(1)); }

  /// The clock of this world, which in a simulated one is virtual.
  virtual Seconds now() const = 0;
  /// How long this rank has waited for others so far, in all. In shared memory, where a wait begins
  /// with spinning, its first microsecond or so does not count.
  virtual Seconds waited() const = 0;
  /// Bytes of tensors that this rank has received from other ranks, or read from and written to
  /// their memory, so far. 0 where the communicator does not count them.
  virtual std::uint64_t bytes_moved() const { return 0; }

  /// When this communicator breaks, its ranks stop waiting in `linked`, too; and the time that
  /// they wait there counts as waited here. `linked` must not be gone before this one is used
  /// for the last time.
  virtual void link_failure(Communicator& linked) { linked_ = &linked; }

  /// Its last calls, a line each, the oldest first: dist/collectives/flight_recorder.h.
  virtual std::string flight_record() const = 0;

  // What Work is made of.
  virtual bool progress(std::uint64_t sequence) = 0;
  virtual void wait(std::uint64_t sequence, std::optional<Seconds> timeout) = 0;
  virtual void finish(std::uint64_t sequence, std::optional<Seconds> timeout) {
    wait(sequence, timeout);
  }
  virtual std::exception_ptr failure(std::uint64_t sequence) const = 0;

 protected:
  Communicator* linked_ = nullptr;
};

inline bool Work::progress() { return !communicator_ || communicator_->progress(sequence_); }
inline void Work::wait(std::optional<Seconds> timeout) {
  if (communicator_) communicator_->wait(sequence_, timeout);
}
inline void Work::finish(std::optional<Seconds> timeout) {
  if (communicator_) communicator_->finish(sequence_, timeout);
}
inline std::exception_ptr Work::exception() const {
  return communicator_ ? communicator_->failure(sequence_) : nullptr;
}

}  // namespace lockstep::dist
