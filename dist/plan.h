#pragma once
/// Who sends what to whom, and when: the plan of a collective for one rank. A plan is a pure
/// function of (operation, algorithm, rank, world, count, root). It knows neither bytes nor
/// transports, its steps are computed when asked for, and so it can be tested exhaustively without
/// any I/O. An Executor carries it out.
///
/// Words: the *buffer* is the tensor that the collective works on; it is cut into as many *parts*
/// as there are ranks (`partition`), and rank r *owns* part r. A *slot* is scratch memory for one
/// part from one peer.
///
/// RING. Every rank talks to its two neighbours only: rank r sends to r + 1 and receives from r - 1
/// (all modulo n).
///
///     +--> 0 --> 1 --+     reduce-scatter, n - 1 steps: in step s rank r sends part r - s - 1 and
///     |              |     adds what comes to part r - s - 2; at the end part r is complete there.
///     +--- 3 <-- 2 <-+     all-gather, n - 1 steps: in step s rank r sends part r - s, which is
///                          complete, and stores part r - s - 1.
///
/// Three ranks with the values a, b, c; digits are parts, abc1 is the sum a1 + b1 + c1:
///
///            step         rank 0            rank 1            rank 2
///                         a0  a1  a2        b0  b1  b2        c0  c1  c2
///   reduce   0   sends    a2 to 1           b0 to 2           c1 to 0
///                         a0  ac1 a2        b0  b1  ab2       bc0 c1  c2
///            1   sends    ac1 to 1          ab2 to 2          bc0 to 0
///                         abc0 .   .         .  abc1 .         .   .  abc2
///   gather   2   sends    abc0 to 1         abc1 to 2         abc2 to 0
///            3   sends    abc2 to 1         abc0 to 2         abc1 to 0      all parts everywhere
///
/// For S bytes, n ranks, a seconds of latency per message, B bytes/s per link and g seconds per
/// byte added (the alpha-beta-gamma model):
///
///   t = 2 (n-1) a  +  2 (n-1)/n S/B  +  (n-1)/n S g
///
/// No all-reduce can send fewer than 2 (n-1)/n S bytes per rank, so the ring is optimal in
/// bandwidth (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
/// workstations, 2009). Hence the *bus bandwidth*: S/t * 2 (n-1)/n, which compares worlds of
/// different sizes with one number, the speed of the link. The sum of a part is a chain that begins
/// at the rank after its owner, so the bits depend on the cut.
///
/// DIRECT. Every rank sends part p straight to its owner p; the owner folds all contributions in a
/// balanced binary tree over ranks (kernels/fold.h) and sends the sum to all. As many bytes as the
/// ring, and latency of two hops instead of 2 (n-1), but n - 1 streams at once. The bits of an
/// element depend on the n contributions alone, neither on the cut nor on the transport.
///
/// SHARED. Direct, where the buffer lies in memory that all ranks address: "mine is ready" to all,
/// the owner folds its part from everybody's memory into everybody's, "folded" to all. Nothing is
/// copied.
///
/// BROADCAST. A binomial tree over v = (rank - root) mod n: in round k the 2^k ranks that have the
/// data send it to v + 2^k.
///
/// BARRIER. Dissemination: in round k rank r signals r + 2^k and hears r - 2^k, so that after
/// ceil(log2 n) rounds everyone has heard, through others, from everyone (Hensgen, Finkel and
/// Manber, Two algorithms for barrier synchronization, 1988).
///
/// HEADERS. The first message to each peer begins with a header that says which collective this is.
/// In every plan rank r begins by sending one to r + 1 and receiving one from r - 1: if the ranks
/// call different collectives then somewhere two neighbours differ, and it is noticed rather than
/// waited for.

#include <cstdint>
#include <string_view>

#include "lockstep/dist/communicator.h"

namespace lockstep::dist {

enum class Operation : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, barrier };
enum class Algorithm : std::uint8_t { automatic, ring, direct, shared };

std::string_view name_of(Operation operation);
std::string_view name_of(Algorithm algorithm);  ///< "shared" is a way of being "direct"

/// The algorithm for `bytes` bytes. `requested` is automatic, ring or direct; `shared_memory` says
/// that the transport has it, `in_window` that this buffer lies in it. Never automatic; shared only
/// for an all-reduce in a window.
Algorithm choose(Algorithm requested, Operation operation, std::size_t bytes, int world,
                 bool shared_memory, bool in_window);

/// First sends and receives, both at once; then acts.
struct Step {
  enum class Into : std::uint8_t {
    buffer,  ///< received elements are stored in the buffer
    sum,     ///< they are added to the buffer
    slot,    ///< they are stored in the slot of the rank they come from
  };
  enum class Action : std::uint8_t {
    none,
    copy_in,       ///< own part of the buffer := the input (all_gather)
    copy_out,      ///< the output := own part of the buffer (reduce_scatter)
    fold_slots,    ///< own part := tree sum of the slots and itself
    fold_windows,  ///< own part on every rank := tree sum of that part of every rank
  };

  int to = -1;  ///< the rank to send to, or -1
  Range send;   ///< elements of the buffer; may be empty
  int from = -1;
  Range receive;  ///< the elements of the buffer that those which come belong to
  Into into = Into::buffer;
  bool header = false;  ///< a header goes first, both ways
  Action action = Action::none;
};

struct Plan {
  Operation operation = Operation::barrier;
  Algorithm algorithm = Algorithm::direct;  ///< of no matter to broadcast and barrier
  int rank = 0;
  int world = 1;
  std::int64_t count = 0;  ///< elements of the buffer
  int root = 0;            ///< of a broadcast

  int steps() const;
  Step step(int index) const;  ///< 0 <= index < steps()

  Range part(int owner) const { return partition(count, world, owner); }
  /// Slots of one part each that the plan receives into: one per peer, or none.
  int slots() const;
  /// True if some step receives with Into::sum.
  bool sums() const;
};

}  // namespace lockstep::dist
