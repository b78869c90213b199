#include "lockstep/dist/ddp/buckets/bucket_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>
#include <utility>

#include "lockstep/core/text/number.h"

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
  // A linked list, so that a model with very many parameters takes no longer for each of them. It
  // begins behind place `parameters`.
  const std::size_t front = parameters;
  constexpr int none = -1;
  std::vector<int> behind(parameters + 1, none);
  std::vector<bool> placed(parameters);
  std::size_t last = front;
  for (const int p : ready) {
    behind[last] = p;
    last = static_cast<std::size_t>(p);
    placed[last] = true;
  }
  for (std::size_t p = parameters; p-- > 0;)
    if (!placed[p]) behind[p] = std::exchange(behind[p + 1], static_cast<int>(p));
  std::vector<int> order;
  order.reserve(parameters);
  for (int p = behind[front]; p != none; p = behind[static_cast<std::size_t>(p)])
    order.push_back(p);
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

BucketPlaces bucket_places(std::span<const GradientSize> sizes, const BucketLayout& layout) {
  check_layout(layout, sizes.size());
  BucketPlaces places;
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
    const auto first = static_cast<std::ptrdiff_t>(places.buckets.size());
    for (const int p : segment) {
      const GradientSize& size = sizes[static_cast<std::size_t>(p)];
      auto bucket = std::find_if(places.buckets.begin() + first, places.buckets.end(),
                                 [&](const auto& other) { return alike(size, other); });
      if (bucket == places.buckets.end())
        bucket = places.buckets.insert(bucket, {size.dtype, size.device, {}, 0, 0});
      bucket->slots.push_back({p, bucket->numel});
      bucket->numel += aligned(size.numel, size.dtype);
    }
  }
  std::vector<BucketPlaces::Bucket*> newest;  // of each dtype and device
  for (BucketPlaces::Bucket& bucket : places.buckets) {
    const auto before =
        std::ranges::find_if(newest, [&](const auto* other) { return alike(*other, bucket); });
    if (before == newest.end()) {
      newest.push_back(&bucket);
      continue;
    }
    bucket.begin = (*before)->begin + (*before)->numel;
    *before = &bucket;
  }
  return places;
}

// ---- second reading: layouts as text, for checkpoints, and what makes one valid ----

std::string to_text(const BucketLayout& layout) {
  return fmt::format("{} / {}", fmt::join(layout.order, " "), fmt::join(layout.cuts, " "));
}

BucketLayout layout_from_text(std::string_view text, std::size_t parameters) {
  BucketLayout layout;
  std::vector<int>* numbers = &layout.order;
  std::istringstream words = classic_stream(text);
  for (std::string word; words >> word;) {
    if (word == "/" && numbers == &layout.order) {
      numbers = &layout.cuts;
      continue;
    }
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, numbers->emplace_back());
    check<UsageError>(stop == end && error == std::errc(),
                      "[bucket layout] '{}' is not 'order / cuts'", text);
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

}  // namespace lockstep::dist
