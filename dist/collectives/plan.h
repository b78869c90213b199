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
/// balanced binary tree over ranks (kernels/tree_reduce.h) and sends the sum to all. As many bytes as the
/// ring, and latency of two hops instead of 2 (n-1), but n - 1 streams at once. The bits of an
/// element depend on the n contributions alone, neither on the cut nor on the transport.
///
///   t = 2 a  +  2 (n-1)/n S/B  +  (n-1)/n S g
///
/// Three ways of being direct have the same bits, because the tree is the same:
///
/// SHARED, where the buffer lies in memory that all ranks address: "mine is ready" to all, the
/// owner folds its part from everybody's memory into everybody's, "folded" to all. Nothing is
/// copied.
///
/// ONE-SHOT, for small messages: every rank sends all it has to all others and folds everything
/// itself. One hop: t = a + (n-1) (S/B + S g).
///
/// HALVING, recursive halving and doubling (Thakur, Rabenseifner and Gropp, Optimization of
/// Collective Communication Operations in MPICH, 2005, section 4.4): partners at distance 1, 2, 4,
/// ... exchange halves of what they still reduce, and then gather it back. After the step with
/// distance d a rank holds sums over its aligned group of 2 d ranks: the levels of the tree.
///
///     ranks         0 1   2 3      p is the largest power of two within n. The n - p other ranks
///     distance 1    |-|   |-|      hand their contributions to the owners, which add the sum of
///     distance 2    |-----|        the others to that of the p: the root of the tree. Afterwards
///                     |-----|      other rank j gets everything from rank j - p.
///
///   t = 2 log2(p) a  +  2 (p-1)/p S/B  +  (p-1)/p S g     (and for n > p two hops with S/B more)
///
/// HIERARCHICAL, where several ranks share a machine (NodeMap) and the links between machines are
/// slow. With k the number of ranks of the smallest node: (1) inside each node the i-th rank, i <
/// k, collects and folds shard i of k; (2) the i-th ranks of all nodes all-reduce shard i, direct;
/// (3) each shares its shard inside its node. Between machines travel 2 (N-1)/N S bytes per node,
/// where a flat algorithm may send n times that. The bits depend on which ranks share a node.
///
/// BROADCAST. A binomial tree over v = (rank - root) mod n: in round k the 2^k ranks that have the
/// data send it to v + 2^k.
///
/// BARRIER. Dissemination: in round k rank r signals r + 2^k and hears r - 2^k, so that after
/// ceil(log2 n) rounds everyone has heard, through others, from everyone (Hensgen, Finkel and
/// Manber, Two algorithms for barrier synchronization, 1988).
///
/// HEADERS. The first message to each peer begins with a header that says which collective this is.
/// In every plan rank r begins by sending one to r + 1 and receiving one from r - 1 (a step of its
/// own, `greet`, where that is not what the algorithm does first): if the ranks call different
/// collectives then somewhere two neighbours differ, and it is noticed rather than waited for.

#include <cstdint>
#include <string_view>

#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

enum class Operation : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, barrier };
enum class Algorithm : std::uint8_t {
  automatic,
  ring,
  direct,
  shared,
  one_shot,
  halving,
  hierarchical,
  device,  ///< the bytes travel between GPUs (dist/gpu/device_communicator.h): the plan is to agree
};

std::string_view name_of(Operation operation);
std::string_view name_of(Algorithm algorithm);

/// First sends and receives, both at once; then acts.
struct Step {
  enum class Into : std::uint8_t {
    buffer,  ///< received elements are stored in the buffer
    sum,     ///< they are added to the buffer
    slot,    ///< they are stored in `slot`
  };
  enum class Action : std::uint8_t {
    none,
    copy_in,     ///< own part of the buffer := the input (all_gather)
    copy_out,    ///< the output := own part of the buffer (reduce_scatter)
    fold_slots,  ///< `fold` := tree sum of `sources` contributions: itself as number `mine`, and
                 ///< the slots, in order, as the others
    fold_rest,   ///< `fold` += tree sum of the first `sources` slots
    reduce_regions,  ///< own part on every rank := tree sum of that part of every rank
  };

  int to = -1;  ///< the rank to send to, or -1
  Range send;   ///< elements of the buffer; may be empty
  int from = -1;
  Range receive;  ///< the elements of the buffer that those which come belong to
  Into into = Into::buffer;
  int slot = 0;
  bool header = false;  ///< a header goes first, both ways
  Action action = Action::none;
  Range fold;
  int sources = 0, mine = 0;
};

struct Plan {
  Operation operation = Operation::barrier;
  Algorithm algorithm = Algorithm::direct;  ///< of no matter to broadcast and barrier
  int rank = 0;
  int world = 1;
  std::int64_t count = 0;          ///< elements of the buffer
  int root = 0;                    ///< of a broadcast
  const NodeMap* nodes = nullptr;  ///< for Algorithm::hierarchical

  int steps() const;
  Step step(int index) const;  ///< 0 <= index < steps()

  Range part(int owner) const { return partition(count, world, owner); }
  /// Slots that the plan receives into, and the elements of the largest part that one must hold.
  int slots() const;
  std::int64_t slot_elements() const;
  /// True if some step receives with Into::sum.
  bool sums() const;

  bool operator==(const Plan&) const = default;
};

}  // namespace lockstep::dist
