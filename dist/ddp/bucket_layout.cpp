#include "lockstep/dist/ddp/bucket_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>

namespace lockstep::dist {
namespace {

constexpr std::size_t alignment = 64;  // bytes

std::int64_t aligned(std::int64_t numel, DType dtype) {
  const auto step = static_cast<std::int64_t>(alignment / size_of(dtype));
  return (numel + step - 1) / step * step;
}

const GradientSize& size_at(std::span<const GradientSize> sizes, const std::vector<int>& order,
                            std::size_t position) {
  return sizes[static_cast<std::size_t>(order[position])];
}

bool together(const GradientSize& a, const GradientSize& b) {
  return a.dtype == b.dtype && a.device == b.device;
}

/// The ends of the segments of `layout`, the last one included.
std::vector<std::size_t> segment_ends(const BucketLayout& layout) {
  std::vector<std::size_t> ends(layout.cuts.begin(), layout.cuts.end());
  if (!layout.order.empty()) ends.push_back(layout.order.size());
  return ends;
}

/// The buckets of one segment of the order, as it grows: when its last gradient is ready, and how
/// long its buckets (one per dtype and device) are on their way.
struct Segment {
  double ready = 0;
  double travel = 0;
  std::vector<const GradientSize*> kinds{};

  void add(const GradientSize& size, double ready_at, const LinkModel& link) {
    ready = std::max(ready, ready_at);
    travel += link.seconds(size.bytes());
    if (std::ranges::any_of(kinds, [&](const auto* kind) { return together(*kind, size); }))
      travel -= link.latency;
    else
      kinds.push_back(&size);
  }
  double finish(double start) const { return std::max(start, ready) + travel; }
};

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
    // Behind p + 1, which by now has a place.
    const auto before = std::ranges::find(order, p + 1);
    order.insert(before == order.end() ? order.begin() : before + 1, p);
  }
  return order;
}

BucketLayout capped_layout(std::span<const GradientSize> sizes, std::vector<int> order,
                           const BucketCaps& caps) {
  const std::size_t n = order.size();
  const auto bytes = [&](std::size_t i) { return size_at(sizes, order, i).bytes(); };
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

double finish_time(std::span<const GradientSize> sizes, const BucketLayout& layout,
                   std::span<const double> ready, const LinkModel& link) {
  double time = 0;
  std::size_t begin = 0;
  for (const std::size_t end : segment_ends(layout)) {
    Segment segment;
    for (std::size_t i = begin; i < end; ++i)
      segment.add(size_at(sizes, layout.order, i), ready[static_cast<std::size_t>(layout.order[i])],
                  link);
    time = segment.finish(time);
    begin = end;
  }
  return time;
}

BucketLayout measured_layout(std::span<const GradientSize> sizes, std::vector<int> order,
                             std::span<const double> ready, const LinkModel& link) {
  const std::size_t n = order.size();
  struct Best {
    double time = 0;
    int buckets = 0;
    std::size_t begin = 0;  // of the last segment
  };
  std::vector<Best> best(n + 1);  // of every prefix of the order
  for (std::size_t end = 1; end <= n; ++end) {
    best[end].time = std::numeric_limits<double>::infinity();
    Segment segment;
    for (std::size_t begin = end; begin-- > 0;) {
      segment.add(size_at(sizes, order, begin), ready[static_cast<std::size_t>(order[begin])],
                  link);
      const double time = segment.finish(best[begin].time);
      const int buckets = best[begin].buckets + 1;
      if (time < best[end].time || (time == best[end].time && buckets < best[end].buckets))
        best[end] = {time, buckets, begin};
    }
  }
  BucketLayout layout;
  for (std::size_t begin = n == 0 ? 0 : best[n].begin; begin > 0; begin = best[begin].begin)
    layout.cuts.push_back(static_cast<int>(begin));
  std::ranges::reverse(layout.cuts);
  layout.order = std::move(order);
  return layout;
}

std::string to_text(const BucketLayout& layout) {
  return fmt::format("{} / {}", fmt::join(layout.order, " "), fmt::join(layout.cuts, " "));
}

BucketLayout layout_from_text(std::string_view text, std::size_t parameters) {
  BucketLayout layout;
  std::vector<int>* numbers = &layout.order;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    if (*at == ' ') {
      ++at;
    } else if (*at == '/' && numbers == &layout.order) {
      numbers = &layout.cuts;
      ++at;
    } else {
      const auto [stop, error] = std::from_chars(at, end, numbers->emplace_back());
      check<UsageError>(error == std::errc(), "[bucket layout] '{}' is not 'order / cuts'", text);
      at = stop;
    }
  }
  check_layout(layout, parameters);
  return layout;
}

void check_layout(const BucketLayout& layout, std::size_t parameters) {
  check<UsageError>(layout.order.size() == parameters,
                    "[bucket layout] orders {} parameters, the model has {}", layout.order.size(),
                    parameters);
  std::vector<bool> seen(parameters);
  for (const int p : layout.order) {
    check<UsageError>(
        p >= 0 && static_cast<std::size_t>(p) < parameters && !seen[static_cast<std::size_t>(p)],
        "[bucket layout] parameter {} of {} is out of range or there twice", p, parameters);
    seen[static_cast<std::size_t>(p)] = true;
  }
  int previous = 0;
  for (const int cut : layout.cuts) {
    check<UsageError>(cut > previous && static_cast<std::size_t>(cut) < parameters,
                      "[bucket layout] cut {} after {} in an order of {}", cut, previous,
                      parameters);
    previous = cut;
  }
}

BucketPlan bucket_plan(std::span<const GradientSize> sizes, const BucketLayout& layout) {
  check_layout(layout, sizes.size());
  BucketPlan plan;
  std::size_t begin = 0;
  for (const std::size_t end : segment_ends(layout)) {
    std::vector<int> segment(layout.order.begin() + static_cast<std::ptrdiff_t>(begin),
                             layout.order.begin() + static_cast<std::ptrdiff_t>(end));
    std::ranges::sort(segment);
    const std::size_t first = plan.buckets.size();
    for (const int p : segment) {
      const GradientSize& size = sizes[static_cast<std::size_t>(p)];
      auto bucket = plan.buckets.begin() + static_cast<std::ptrdiff_t>(first);
      while (bucket != plan.buckets.end() && !together(size, {0, bucket->dtype, bucket->device}))
        ++bucket;
      if (bucket == plan.buckets.end())
        bucket = plan.buckets.insert(bucket, {size.dtype, size.device, {}, 0, 0});
      bucket->slots.push_back({p, bucket->numel});
      bucket->numel += aligned(size.numel, size.dtype);
    }
    begin = end;
  }
  for (std::size_t b = 0; b < plan.buckets.size(); ++b)
    for (std::size_t earlier = b; earlier-- > 0;) {
      const BucketPlan::Bucket& other = plan.buckets[earlier];
      if (other.dtype != plan.buckets[b].dtype || !(other.device == plan.buckets[b].device))
        continue;
      plan.buckets[b].begin = other.begin + other.numel;
      break;
    }
  return plan;
}

}  // namespace lockstep::dist
