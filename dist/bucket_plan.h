#pragma once
/// Which gradient lies in which bucket, and where. A pure function.
///
/// Backward makes the last layer's gradients first, so buckets are filled in reverse order of
/// registration: bucket 0 holds the end of the model and can travel while the rest is still
/// computed.
///
///     registered:   0.weight  0.bias  2.weight  2.bias  4.weight  4.bias
///     bucket 1:    [0.weight  0.bias]
///     bucket 0:                      [2.weight  2.bias  4.weight  4.bias | used counts]
///
/// Within a bucket gradients lie in registration order, each aligned to 64 bytes, so that kernels
/// write whole vectors and no two gradients share a cache line. A bucket has one dtype. A parameter
/// is never split; one larger than the cap has a bucket of its own.
///
/// Behind the gradients of the last bucket lies one element per parameter: how many ranks used it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/dtype.h"

namespace lockstep::dist {

struct GradientSize {
  std::int64_t numel = 0;
  DType dtype = DType::f32;
};

struct BucketPlan {
  struct Slot {
    int parameter = 0;        ///< index in registration order
    std::int64_t offset = 0;  ///< elements from the start of the bucket
    bool operator==(const Slot&) const = default;
  };
  struct Bucket {
    DType dtype = DType::f32;
    std::vector<Slot> slots;
    std::int64_t numel = 0;  ///< padding included
    bool operator==(const Bucket&) const = default;
  };
  std::vector<Bucket> buckets;   ///< in the order in which they are launched
  std::int64_t used_offset = 0;  ///< of the used counts in the last bucket
};

/// `cap` is in bytes of gradients per bucket, and positive. Without parameters there are no buckets.
BucketPlan bucket_plan(std::span<const GradientSize> parameters, std::size_t cap);

}  // namespace lockstep::dist
