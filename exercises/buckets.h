#pragma once
// BUCKETS. Cut the gradients into buckets. `bytes[i]` is the size of the i-th gradient, in the
// order in which gradients become ready. Return the buckets in order, each with its gradients'
// places.
//
// A bucket takes gradients one after another. It ends before the one with which it would hold more
// than `cap` bytes. A gradient that is larger than the cap has a bucket to itself. So with a cap of
// 100 the sizes 40, 50, 20, 300, 10 become
//
//     {0, 1}, {2}, {3}, {4}
//
// Why not one collective per gradient? Each costs microseconds, however small it is. Why not one
// for all? It could not begin before backward ends. Afterwards read
// dist/ddp/buckets/bucket_layout.h, which also makes the first and the last bucket smaller.

#include "types.h"

namespace exercise {

inline std::vector<std::vector<int>> buckets([[maybe_unused]] const std::vector<long>& bytes,
                                             [[maybe_unused]] long cap) {
  return {};  // your turn
}

}  // namespace exercise
