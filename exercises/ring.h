#pragma once
// RING. Write the plan of an all-reduce on a ring: what rank `rank` of `world` does, step by step.
//
// Every rank talks to its two neighbours only: it sends to rank + 1 and receives from rank - 1,
// modulo world. The buffer is cut into `world` parts. In each step a rank sends one part and
// receives one. At the end every part holds the sum of all ranks, on every rank.
//
// There are 2 (world - 1) steps. In the first half what arrives is added: after it, each part is
// complete on one rank. In the second half complete parts go round, and take the place of what was
// there. Two ranks hold the parts (1, 2) and (10, 20):
//
//     step 0   rank 0 sends part 1 (2), rank 1 sends part 0 (10); both add   (11, 2)   (10, 22)
//     step 1   rank 0 sends part 0 (11), rank 1 sends part 1 (22)            (11, 22)  (11, 22)
//
// What a rank sends in a step is what its neighbour expects in the same step. A world of 1 has no
// steps. Afterwards read dist/collectives/plan/ring.cpp.

#include "types.h"

namespace exercise {

inline std::vector<RingStep> ring([[maybe_unused]] int rank, [[maybe_unused]] int world) {
  return {};  // your turn
}

}  // namespace exercise
