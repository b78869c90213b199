#pragma once
/// Which gradient lies where in the buckets, as pure functions.
///
/// Gradients become ready in about the reverse order of registration. Buckets are filled and
/// launched in that order: while the first layers' gradients are still being computed, the last
/// layers' travel. The *layout* says in which order gradients are taken and where that order is cut
/// into buckets. From it follow the *places*: where in memory each gradient lies.
///
///     registered:   0.w 0.b  2.w 2.b 4.w 4.b
///     bucket 1:    [0.w 0.b | step metadata]
///     bucket 0:             [2.w 2.b 4.w 4.b]
///
/// Within a bucket gradients lie in registration order. Each is aligned to 64 bytes, so that
/// kernels write whole vectors and no two gradients share a cache line. A bucket has one dtype and
/// one device. A parameter is never split; a parameter that is larger than the cap has a bucket to
/// itself. All buckets of a dtype and device lie one after another in one piece of memory. Its size
/// does not depend on the layout: another layout is another cut of the same memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"

namespace lockstep::dist {

struct GradientSize {
  std::int64_t numel = 0;
  DType dtype = DType::f32;
  Device device = {};
  std::size_t bytes() const { return static_cast<std::size_t>(numel) * size_of(dtype); }
};

struct BucketLayout {
  std::vector<int> order;  ///< of parameters (indices in registration order), as they get ready
  std::vector<int> cuts;   ///< positions in `order`, ascending, at which a new bucket begins
  bool operator==(const BucketLayout&) const = default;
};

/// In bytes of gradients; each at least 1.
struct BucketCaps {
  std::size_t bucket = std::size_t{25} << 20;  ///< no bucket of several gradients is larger
  /// The first bucket is closed when it holds this much, so that the link starts early.
  std::size_t first = std::size_t{1} << 20;
  /// The last bucket is the smallest that holds this much: nothing is left to hide it behind.
  std::size_t last = std::size_t{1} << 20;
};

/// The reverse of registration: the order before any is known.
std::vector<int> reverse_order(std::size_t parameters);

/// `ready` is the order in which some parameters became ready. Each other parameter is put behind
/// the parameter that comes before it in the reverse of registration.
std::vector<int> complete_order(std::span<const int> ready, std::size_t parameters);

/// `order`, cut by size.
BucketLayout capped_layout(std::span<const GradientSize> sizes, std::vector<int> order,
                           const BucketCaps& caps);

struct BucketPlaces {
  struct Slot {
    int parameter = 0;        ///< index in registration order
    std::int64_t offset = 0;  ///< elements from the start of the bucket
    bool operator==(const Slot&) const = default;
  };
  struct Bucket {
    DType dtype = DType::f32;
    Device device = {};
    std::vector<Slot> slots;
    std::int64_t begin = 0;  ///< elements from the start of the memory of this dtype and device
    std::int64_t numel = 0;  ///< with padding, without the trailer of the last one
    bool operator==(const Bucket&) const = default;
  };
  std::vector<Bucket> buckets;  ///< in the order in which they are launched
};

/// Without parameters there are no buckets. Throws UsageError for a layout of other parameters.
BucketPlaces bucket_places(std::span<const GradientSize> sizes, const BucketLayout& layout);

// --- second reading ---

/// "3 2 1 0 / 2": order / cuts, for checkpoints.
std::string to_text(const BucketLayout& layout);
/// Throws UsageError for a text that is not the layout of so many parameters.
BucketLayout layout_from_text(std::string_view text, std::size_t parameters);
/// Throws UsageError, naming what is wrong, unless `layout` orders and cuts so many parameters.
void check_layout(const BucketLayout& layout, std::size_t parameters);

}  // namespace lockstep::dist
