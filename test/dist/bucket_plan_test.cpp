// The plan of the buckets, as a pure function.

#include "lockstep/dist/bucket_plan.h"

#include <doctest/doctest.h>

#include <set>

using namespace lockstep;
using dist::bucket_plan;
using dist::BucketPlan;
using dist::GradientSize;

namespace {
// The layers of 64-128-64-10.
const std::vector<GradientSize> mlp = {{8192}, {128}, {8192}, {64}, {640}, {10}};

std::vector<std::vector<int>> members(const BucketPlan& plan) {
  std::vector<std::vector<int>> result;
  for (const auto& bucket : plan.buckets) {
    result.emplace_back();
    for (const auto& slot : bucket.slots) result.back().push_back(slot.parameter);
  }
  return result;
}
}  // namespace

TEST_CASE("buckets are filled from the end of the model, in registration order inside") {
  CHECK(members(bucket_plan(mlp, 1 << 20)) == std::vector<std::vector<int>>{{0, 1, 2, 3, 4, 5}});
  CHECK(members(bucket_plan(mlp, 40000)) == std::vector<std::vector<int>>{{1, 2, 3, 4, 5}, {0}});
  // 10 + 640 + 64 floats are 2856 bytes; a parameter above the cap has a bucket of its own.
  CHECK(members(bucket_plan(mlp, 2856)) == std::vector<std::vector<int>>{{3, 4, 5}, {2}, {1}, {0}});
  CHECK(members(bucket_plan(mlp, 1)) ==
        std::vector<std::vector<int>>{{5}, {4}, {3}, {2}, {1}, {0}});
}

TEST_CASE("every parameter has its own aligned place, whatever the cap and the dtypes") {
  for (const std::size_t cap : {1u, 100u, 5000u, 40000u, 1u << 30})
    for (const std::size_t count : {0u, 1u, 2u, 7u}) {
      std::vector<GradientSize> sizes;
      for (std::size_t i = 0; i < count; ++i)
        sizes.push_back(
            {static_cast<std::int64_t>(i * i * 37), i % 3 == 1 ? DType::f64 : DType::f32});
      const BucketPlan plan = bucket_plan(sizes, cap);
      std::set<int> seen;
      for (const auto& bucket : plan.buckets) {
        std::int64_t end = 0;
        int previous = -1;
        for (const auto& slot : bucket.slots) {
          const GradientSize& size = sizes[static_cast<std::size_t>(slot.parameter)];
          CHECK(seen.insert(slot.parameter).second);
          CHECK(slot.parameter > previous);
          CHECK(size.dtype == bucket.dtype);
          CHECK(slot.offset >= end);
          CHECK(slot.offset * static_cast<std::int64_t>(size_of(bucket.dtype)) % 64 == 0);
          previous = slot.parameter;
          end = slot.offset + size.numel;
        }
        CHECK(bucket.numel >= end);
      }
      CHECK(seen.size() == count);
      if (count == 0) continue;
      // The used counts lie behind the gradients of the last bucket.
      const auto& last = plan.buckets.back();
      const auto& slot = last.slots.back();
      CHECK(plan.used_offset >=
            slot.offset + sizes[static_cast<std::size_t>(slot.parameter)].numel);
      CHECK(plan.used_offset + static_cast<std::int64_t>(count) <= last.numel);
    }
}

TEST_CASE("the memory is one copy of the gradients and a little alignment") {
  const std::vector<GradientSize> sizes = {{784 * 512}, {512}, {512 * 256}, {256}, {2560}, {10}};
  std::int64_t parameters = 0, planned = 0;
  for (const auto& size : sizes) parameters += size.numel;
  for (const auto& bucket : bucket_plan(sizes, 1 << 18).buckets) planned += bucket.numel;
  CHECK(planned < parameters + parameters / 100);
}
