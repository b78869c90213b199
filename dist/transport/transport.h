#pragma once
/// A transport moves bytes between the ranks of one world: an ordered, bounded byte stream from
/// every rank to every other and, where ranks can address each other's memory, shared regions. It
/// knows nothing of collectives. Only `allocate` waits for other ranks, and `relax` for a moment.
///
///   transport   stream                              regions
///   threads     ring buffer in the process          anonymous pages of the process
///   shm         ring buffer in shared memory        a memfd that every rank maps
///   tcp         one non-blocking socket per pair,   none
///               bytes in sealed frames
///   simulated   bounded queue with virtual delays   pages of the process, on request
///
/// Thread-safety: one Transport belongs to one rank and is used by one thread at a time.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

/// Memory of one size on every rank.
struct SharedRegion {
  std::size_t bytes = 0;         ///< on each rank
  std::vector<std::byte*> base;  ///< of rank r, as this rank addresses it
  std::shared_ptr<void> keeper;  ///< the memory lives as long as this does
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;   ///< "threads", "shm", "tcp", "shm+tcp", "sim"
  virtual bool has_shared_memory() const = 0;  ///< whether allocate() works

  /// Puts as many bytes as fit now into the stream to `peer` and returns their number, perhaps 0.
  /// The other bytes must be given again, unchanged, by the next call: their tag may be under way.
  /// Throws PeerError if the peer is gone or any rank has given up.
  virtual std::size_t send(int peer, std::span<const std::byte> bytes) = 0;

  /// Takes as many bytes as have arrived from `peer`, at most bytes.size(), perhaps 0. What a peer
  /// sent before it left is delivered. After that PeerError is thrown, perhaps not at once, because
  /// the reason may need a moment to arrive. Throws CommError for bytes that were changed on the
  /// way, before the last of them is handed out (tcp).
  virtual std::size_t receive(int peer, std::span<std::byte> bytes) = 0;

  /// The same for two pieces of a stream, the one right behind the other: tcp moves both by one
  /// call of the system. What is behind the bytes that were received may have been written to.
  virtual std::size_t send_both(int peer, std::span<const std::byte> first,
                                std::span<const std::byte> second) {
    const std::size_t count = send(peer, first);
    return count < first.size() || second.empty() ? count : count + send(peer, second);
  }
  virtual std::size_t receive_both(int peer, std::span<std::byte> first,
                                   std::span<std::byte> second) {
    const std::size_t count = receive(peer, first);
    return count < first.size() || second.empty() ? count : count + receive(peer, second);
  }

  /// A region of `bytes` bytes on every rank, zeroed and aligned to a page. Collective: all ranks
  /// call it in the same order with the same size. Blocks until every rank has called, at most for
  /// the join timeout. Throws CommError then, for different sizes, and without shared memory.
  virtual SharedRegion allocate(std::size_t bytes) = 0;

  /// To be called when nothing could be moved, for the `round`-th time in a row: spins at first,
  /// then yields the core, then sleeps (or polls). Throws PeerError if a peer is found to be gone.
  virtual void relax(unsigned round) = 0;
  /// Whether relax(round) spins: it then returns sooner than a look at the clock would take.
  virtual bool spins(unsigned /*round*/) const { return false; }

  /// How long relax() takes at most. A process that took longer did not run meanwhile.
  virtual Seconds longest_nap() const { return Seconds(0.1); }

  /// Time since some fixed point; virtual in the simulated world.
  virtual Seconds now() const = 0;
  /// The same, perhaps some milliseconds late, in a fraction of the time that now() takes.
  virtual Seconds roughly_now() const { return now(); }

  /// Tells all ranks that this one gives up: their next call throws PeerError with `reason`. The
  /// first reason wins. Never throws.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace lockstep::dist
