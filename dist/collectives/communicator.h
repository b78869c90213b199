#pragma once
/// Collectives among the ranks of a world.
///
/// Every rank calls the same collectives in the same order. A call returns at once with a Work. The
/// communicator runs one collective at a time, in call order, whenever any of its Works is
/// progressed or waited for. Work::wait and allocate() block, and a call while the queue is full.
/// The ranks compare the header of a call (number, operation, dtype, count, name) before its data.
///
/// Errors: ShapeError, DTypeError, DeviceError or CommError at once for arguments that do not fit.
/// After a lost peer, a timeout or a mismatch the communicator is broken: this and every later Work
/// throws the same CommError, and the contents of the tensors involved are undefined.
/// Ownership: a call keeps its tensors alive until it has ended.
/// Thread-safety: a communicator belongs to one rank and is used by one thread at a time.
/// Determinism: all ranks get the same bits; for the rest see docs/communicators.md.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/gpu/stream.h"
#include "lockstep/dist/collectives/operation.h"
#include "lockstep/dist/collectives/work.h"
#include "lockstep/dist/rendezvous/membership.h"

namespace lockstep::dist {

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// Whether it has ended, for what may outlive it (CommunicatorRef).
  Lifetime::Ref lifetime() const { return lifetime_.ref(); }
  virtual int rank() const = 0;  ///< this rank's number, from 0
  virtual int size() const = 0;  ///< how many ranks there are
  /// Which ranks of the job these are.
  const Membership& membership() const { return membership_; }
  Membership& membership() { return membership_; }

  /// data := sum over ranks, in place. Any dtype but u8; f16 and bf16 are added up in f32 and
  /// rounded once.
  Work all_reduce(const Tensor& data, std::string_view name);
  /// output := this rank's part of the sum over ranks, partition(input.numel(), size(), rank()).
  /// The input is the workspace: it is overwritten.
  Work reduce_scatter(const Tensor& input, const Tensor& output, std::string_view name);
  /// output := the ranks' inputs one after another. This rank's input has the size of its part,
  /// partition(output.numel(), size(), rank()).
  Work all_gather(const Tensor& input, const Tensor& output, std::string_view name);
  /// data := root's data. Any dtype.
  Work broadcast(const Tensor& data, int root, std::string_view name);
  /// Ends when every rank has called it.
  Work barrier(std::string_view name);

  /// A zeroed tensor of shape {numel} in memory that the transport reaches without a copy: on
  /// `device` if this communicator reaches it, else on the host. All ranks call it in the same
  /// order with the same size; it may block until all have called. The memory lives until the
  /// last tensor over it is gone, on this rank and on the others, which need not agree on when.
  /// CommError if this communicator is broken.
  virtual Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) = 0;

  /// Breaks this communicator, for a rank that leaves the agreed sequence of calls: its unfinished
  /// and later Works throw CommError with `reason`, those of the other ranks PeerError with it.
  /// Does nothing if it is already broken. Does not block.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// If this communicator fails, `linked` fails too, so that no rank waits there for ever; and
  /// waited() and exposed() count the time spent there too. `linked` must live as long as this one
  /// is used.
  virtual void link_failure(Communicator& linked);

  /// What an all_reduce of so many bytes takes: "ring", "two-shot", ... A pure function.
  virtual std::string_view algorithm(std::size_t bytes, DType dtype = DType::f32) const = 0;
  /// From now on all-reduces for which no algorithm was asked add in tree order (choice.h), those
  /// of the linked communicator too. On all ranks before the same call.
  virtual void add_in_tree_order() {
    if (linked_) linked_->add_in_tree_order();
  }
  /// The algorithms of all sizes: "up to 64 KiB one-shot; beyond two-shot-shared".
  virtual std::string choices() const { return "always " + std::string(algorithm(1)); }
  /// Waits on the host for work of a GPU. CommError or PeerError if another rank has failed
  /// meanwhile, or after the timeout: the work may be waiting for that rank.
  virtual void wait_for(const Event& event, std::string_view /*what*/) { event.synchronize(); }
  /// This rank does work in which no other rank takes part, and for which others wait, until the
  /// result ends: meanwhile it tells them that it is at work (transport/pulse.h). Null if they do
  /// not hear of it.
  virtual std::shared_ptr<void> begin_work() { return nullptr; }
  virtual bool hears_of_work() const { return false; }
  virtual Seconds now() const = 0;     ///< the world's clock, virtual in a simulated world
  virtual Seconds waited() const = 0;  ///< for other ranks so far, spins of a microsecond aside
  /// The time that this rank's thread has spent in this communicator and the linked one, since the
  /// first call of exposed(): in calls of collectives, progress() and waits. Communication that is
  /// not hidden behind computation.
  Seconds exposed();
  /// Bytes of tensors received from other ranks, or read and written in their memory; 0: not known.
  virtual std::uint64_t bytes_moved() const { return 0; }
  /// Its last calls, a line each, the oldest first: dist/collectives/flight_recorder.h.
  virtual std::string flight_record() const = 0;

 protected:
  friend class Work;
  /// Takes a call whose arguments have been checked.
  virtual Work enqueue(const CollectiveCall& call, std::string_view name) = 0;
  virtual bool progress(std::uint64_t sequence) = 0;
  virtual void wait(std::uint64_t sequence, std::optional<Seconds> timeout) = 0;
  virtual void finish(std::uint64_t sequence, std::optional<Seconds> timeout) {
    wait(sequence, timeout);
  }

  Communicator* linked_ = nullptr;

 private:
  class Inside;
  Work issue(const CollectiveCall& call, std::string_view name);

  Lifetime lifetime_;
  Membership membership_;
  std::optional<Seconds> exposed_;  // nothing: it is not measured
};

inline Work::Work(Communicator* communicator, std::uint64_t sequence)
    : communicator_(communicator), life_(communicator->lifetime()), sequence_(sequence) {}

/// A communicator, for what may outlive it.
class CommunicatorRef {
 public:
  explicit CommunicatorRef(Communicator& communicator)
      : communicator_(&communicator), life_(communicator.lifetime()) {}
  bool ended() const { return life_.expired(); }
  /// Throws StateError once it has ended; `what` then stands before the reason: "[step] an
  /// optimizer".
  Communicator& get(std::string_view what) const {
    if (ended()) [[unlikely]]
      fail_ended(what);
    return *communicator_;
  }

 private:
  friend class Work;
  [[noreturn]] static void fail_ended(std::string_view what);

  Communicator* communicator_;
  Lifetime::Ref life_;
};

}  // namespace lockstep::dist
