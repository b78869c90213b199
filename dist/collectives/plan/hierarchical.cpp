// HIERARCHICAL, where several ranks share a node (a machine) and the links between nodes are slow.
// With k the number of ranks of the smallest node (NodeMap::local_shards):
//
//     node x      node y
//       0 --------- 2        (1) inside each node: rank i < k collects and reduces shard i of k
//       |           |        (2) between nodes: the i-th ranks all-reduce shard i, two-shot
//       1 --------- 3        (3) inside each node: every rank i < k sends its shard to all
//
//     four elements   rank 0                rank 1           rank 2             rank 3
//     (1)             11 22 . .             . . 33 44        1100 2200 . .      . . 3300 4400
//     (2) reduces     1111 . . .            . . 3333 .       . 2222 . .         . . . 4444
//     (2) sends       1111 2222 . .         . . 3333 4444    1111 2222 . .      . . 3333 4444
//     (3)             1111 2222 3333 4444   the same         the same           the same
//
//   t = 2 a  +  2 a'  +  2 (l-1)/l S b'  +  (N-1)/N S/k (2 b + g)
//
// a', b': inside a node; N nodes; l = n/N ranks on each. A node sends 2 (N-1)/N S bytes to others,
// where plain two-shot would send n/N times as much. Nodes may have different numbers of ranks:
// those beyond the k-th only give and get. The bits depend on which ranks share a node, not on
// buckets. Where every node has the same power of two of consecutive ranks, it is two-shot's tree.

#include "lockstep/dist/collectives/plan/algorithms.h"

namespace lockstep::dist {

void hierarchical_all_reduce(const PlanInput& input, Plan& plan) {
  const NodeMap& nodes = *input.nodes;
  const int node = nodes.node_of[index(input.rank)], place = nodes.place_of[index(input.rank)];
  const std::vector<int>& neighbours = nodes.ranks[index(node)];
  const Group inside{.size = static_cast<int>(neighbours.size()),
                     .place = place,
                     .elements = {0, input.count},
                     .owners = nodes.local_shards,
                     .ranks = neighbours};
  greet(input, plan);
  two_shot_reduce_scatter(inside, plan);
  if (place < nodes.local_shards) {
    std::vector<int> ranks;
    for (const std::vector<int>& other : nodes.ranks) ranks.push_back(other[index(place)]);
    const int count = static_cast<int>(ranks.size());
    const Group between{.size = count,
                        .place = node,
                        .elements = inside.part(place),
                        .owners = count,
                        .ranks = ranks};
    two_shot_reduce_scatter(between, plan);
    two_shot_all_gather(between, false, plan);
  }
  two_shot_all_gather(inside, false, plan);
}

}  // namespace lockstep::dist
