#include "lockstep/dist/ddp/buckets/bucket_layout.h"

#include <algorithm>
#include <numeric>

namespace lockstep::dist {
namespace {

std::int64_t aligned(std::int64_t numel, DType dtype) {
  const auto step = static_cast<std::int64_t>(64 / size_of(dtype));  // 64 bytes
  return (numel + step - 1) / step * step;
}

}  // namespace

std::vector<int> reverse_order(std::size_t parameters) {
  std::vector<int> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

std::vector<int> complete_order(std::span<const int> ready, std::size_t parameters) {
  std::vector<int> order(ready.begin(), ready.end());
  for (int p = static_cast<int>(parameters) - 1; p >= 0; --p) {
    if (std::ranges::find(order, p) != order.end()) continue;
    const auto before = std::ranges::find(order, p + 1);  // which has a place by now
    order.insert(before == order.end() ? order.begin() : before + 1, p);
  }
  return order;
}

BucketLayout capped_layout(std::span<const GradientSize> sizes, std::vector<int> order,
                           const BucketCaps& caps) {
  const std::size_t n = order.size();
  const auto bytes = [&](std::size_t i) {
    return sizes[static_cast<std::size_t>(order[i])].bytes();
  };
  std::size_t tail = n, last = 0;  // where the last bucket begins, by its own rule; what it holds
  while (tail > 0 && last < caps.last && (tail == n || last + bytes(tail - 1) <= caps.bucket))
    last += bytes(--tail);

  BucketLayout layout;
  std::size_t held = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t enough = layout.cuts.empty() ? caps.first : caps.bucket;
    if (i > 0 && (i == tail || held >= enough || held + bytes(i) > caps.bucket)) {
      layout.cuts.push_back(static_cast<int>(i));
      held = 0;
    }
    held += bytes(i);
  }
  layout.order = std::move(order);
  return layout;
}

BucketPlan bucket_plan(std::span<const GradientSize> sizes, const BucketLayout& layout) {
  check_layout(layout, sizes.size());
  BucketPlan plan;
  const auto alike = [](const auto& a, const auto& b) {
    return a.dtype == b.dtype && a.device == b.device;
  };
  std::vector<int> cuts = layout.cuts;
  cuts.push_back(static_cast<int>(layout.order.size()));
  auto begin = layout.order.begin();
  for (const int cut : cuts) {
    std::vector<int> segment(begin, layout.order.begin() + cut);
    begin = layout.order.begin() + cut;
    std::ranges::sort(segment);  // registration order
    const auto first = static_cast<std::ptrdiff_t>(plan.buckets.size());
    for (const int p : segment) {
      const GradientSize& size = sizes[static_cast<std::size_t>(p)];
      auto bucket = std::find_if(plan.buckets.begin() + first, plan.buckets.end(),
                                 [&](const auto& other) { return alike(size, other); });
      if (bucket == plan.buckets.end())
        bucket = plan.buckets.insert(bucket, {size.dtype, size.device, {}, 0, 0});
      bucket->slots.push_back({p, bucket->numel});
      bucket->numel += aligned(size.numel, size.dtype);
    }
  }
  for (auto bucket = plan.buckets.begin(); bucket != plan.buckets.end(); ++bucket)
    for (auto earlier = plan.buckets.begin(); earlier != bucket; ++earlier)
      if (alike(*earlier, *bucket)) bucket->begin = earlier->begin + earlier->numel;
  return plan;
}

}  // namespace lockstep::dist
