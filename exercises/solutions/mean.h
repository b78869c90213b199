#pragma once
// MEAN. Ranks have batches of different sizes. Make the sum over the ranks the mean over all rows.
//
// Rank r has w rows. Its loss is the mean over them, and so is the gradient g that backward
// computes if the loss is seeded with 1. Reducers only add: what a rank sends is seed times g. What
// we want is
//
//     sum of w g / sum of w        over all ranks
//
// `seed`: what rank r seeds its loss with. It knows its own `weight` w. It may know the `total` of
// all ranks' weights, or nothing of them. A rank without rows must send 0, also if its g is NaN.
// `scale`: by what the sum is multiplied at the end, when the weights of all ranks are known. If
// the total was known before, nothing may be left to do: 1. If no rank had rows, there is no
// mean: 0.
//
// Example: 32 rows on rank 0, 96 on rank 1. Known: seeds 0.25 and 0.75, scale 1. Unknown: 32, 96
// and 1 / 128. Afterwards read Tape::contribution in autograd/tape.cpp, and docs/ddp.md, "Weights".

#include "types.h"

namespace exercise {

inline double seed(double weight, std::optional<double> total) {
  if (weight == 0) return 0;
  return total ? weight / *total : weight;
}

inline double scale(const std::vector<double>& weights, bool total_was_known) {
  double total = 0;
  for (const double weight : weights) total += weight;
  if (total == 0) return 0;
  return total_was_known ? 1 : 1 / total;
}

}  // namespace exercise
