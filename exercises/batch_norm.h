#pragma once
// BATCH NORM. SyncBatchNorm normalizes by the mean and variance of all ranks' rows. Each rank sends
// three numbers of its rows: their count, their mean, and M2, the sum of (x - mean)^2. Merge them
// into the three numbers of all rows together.
//
// A first idea is E(x^2) - E(x)^2. It is wrong in practice: with a mean of a million and a variance
// of 1 both terms are 1e12, and their difference is noise. M2 has no such problem (Chan, Golub and
// LeVeque, 1979): for two sets of rows with means that differ by d,
//
//     count = count_a + count_b
//     mean  = mean_a + d count_b / count
//     M2    = M2_a + M2_b + d^2 count_a count_b / count
//
// Ranks may have no rows; then count, mean and M2 are 0. If none has any, return zeros. Example:
// {2, 1, 2} (the rows 0 and 2) and {1, 7, 0} give {3, 3, 26}. Afterwards read nn/batch_norm.h.

#include "types.h"

namespace exercise {

inline Statistics merge([[maybe_unused]] const std::vector<Statistics>& ranks) {
  return {-1, 0, 0};  // your turn
}

}  // namespace exercise
