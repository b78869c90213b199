#include "lockstep/dist/bucket_plan.h"

#include <algorithm>
#include <map>

namespace lockstep::dist {
namespace {

constexpr std::size_t alignment = 64;  // bytes

std::int64_t aligned(std::int64_t numel, DType dtype) {
  const auto step = static_cast<std::int64_t>(alignment / size_of(dtype));
  return (numel + step - 1) / step * step;
}

}  // namespace

BucketPlan bucket_plan(std::span<const GradientSize> parameters, std::size_t cap) {
  BucketPlan plan;
  std::map<DType, BucketPlan::Bucket> open;  // one per dtype
  const auto close = [&](BucketPlan::Bucket& bucket) {
    std::ranges::reverse(bucket.slots);  // back into registration order
    for (BucketPlan::Slot& slot : bucket.slots) {
      slot.offset = bucket.numel;
      const GradientSize& size = parameters[static_cast<std::size_t>(slot.parameter)];
      bucket.numel += aligned(size.numel, bucket.dtype);
    }
    plan.buckets.push_back(std::exchange(bucket, {}));
  };
  std::map<DType, std::size_t> filled;  // bytes in the open bucket
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const DType dtype = parameters[i].dtype;
    const std::size_t bytes = static_cast<std::size_t>(parameters[i].numel) * size_of(dtype);
    BucketPlan::Bucket& bucket = open[dtype];
    if (!bucket.slots.empty() && filled[dtype] + bytes > cap) {
      close(bucket);
      filled[dtype] = 0;
    }
    bucket.dtype = dtype;
    bucket.slots.push_back({static_cast<int>(i), 0});
    filled[dtype] += bytes;
  }
  for (auto& [dtype, bucket] : open)
    if (!bucket.slots.empty()) close(bucket);
  if (!plan.buckets.empty()) {
    BucketPlan::Bucket& last = plan.buckets.back();
    plan.used_offset = last.numel;
    last.numel = aligned(last.numel + static_cast<std::int64_t>(parameters.size()), last.dtype);
  }
  return plan;
}

}  // namespace lockstep::dist
