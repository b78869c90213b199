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

inline std::vector<RingStep> ring(int rank, int world) {
  const auto wrapped = [&](int number) { return (number + 2 * world) % world; };
  std::vector<RingStep> steps;
  for (int s = 0; s < 2 * (world - 1); ++s) {
    const bool add = s < world - 1;
    // What arrived in the step before is what is sent now. So the second half begins with the part
    // that this rank has completed last, its own.
    const int send = add ? wrapped(rank - s - 1) : wrapped(rank - (s - (world - 1)));
    steps.push_back({.to = wrapped(rank + 1),
                     .send = send,
                     .from = wrapped(rank - 1),
                     .receive = wrapped(send - 1),
                     .add = add});
  }
  return steps;
}

}  // namespace exercise
