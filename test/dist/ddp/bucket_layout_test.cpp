// The layout and the places of the buckets, as pure functions.

#include "lockstep/dist/ddp/buckets/bucket_layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "dist/ddp/members.h"

using namespace lockstep;
using namespace lockstep::dist;
using lockstep::dist::testing::members;

namespace {
// The layers of 64-128-64-10.
const std::vector<GradientSize> mlp = {{8192}, {128}, {8192}, {64}, {640}, {10}};

BucketPlaces capped(const std::vector<GradientSize>& sizes, const BucketCaps& caps) {
  return bucket_places(sizes, capped_layout(sizes, reverse_order(sizes.size()), caps));
}

using Members = std::vector<std::vector<int>>;
}  // namespace

TEST_CASE("buckets are filled from the end of the model, in registration order inside") {
  CHECK(members(capped(mlp, {})) == Members{{0, 1, 2, 3, 4, 5}});
  CHECK(members(capped(mlp, {40000})) == Members{{2, 3, 4, 5}, {0, 1}});
  // 10 + 640 + 64 floats are 2856 bytes; a parameter above the cap has a bucket of its own.
  CHECK(members(capped(mlp, {2856})) == Members{{3, 4, 5}, {2}, {1}, {0}});
  CHECK(members(capped(mlp, {1})) == Members{{5}, {4}, {3}, {2}, {1}, {0}});
  CHECK(members(capped({}, {})).empty());
}

TEST_CASE("the first bucket is closed early and the last is small, whatever the cap") {
  const std::vector<GradientSize> even(10, {1000});  // 4000 bytes each
  CHECK(members(capped(even, {1 << 20, 4000, 4000})) ==
        Members{{9}, {1, 2, 3, 4, 5, 6, 7, 8}, {0}});
  CHECK(members(capped(even, {1 << 20, 4001, 8001})) ==
        Members{{8, 9}, {3, 4, 5, 6, 7}, {0, 1, 2}});
  CHECK(members(capped(even, {12000, 4000, 4000})) ==
        Members{{9}, {6, 7, 8}, {3, 4, 5}, {1, 2}, {0}});
  // The last bucket may be as large as the cap.
  CHECK(members(capped(even, {8000, 8000, 8000})) ==
        Members{{8, 9}, {6, 7}, {4, 5}, {2, 3}, {0, 1}});
  // Smaller than the last bucket may be: one bucket.
  CHECK(members(capped(even, {1 << 20, 1 << 20, 1 << 20})).size() == 1);
  // 784-512-256-10 with the defaults: the first layer's weights travel alone.
  const std::vector<GradientSize> large = {{784 * 512}, {512}, {512 * 256}, {256}, {2560}, {10}};
  CHECK(members(capped(large, {})) == Members{{1, 2, 3, 4, 5}, {0}});
}

TEST_CASE("every parameter has its own aligned place, whatever the layout, dtypes and devices") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::size_t count = random() % 8;
    std::vector<GradientSize> sizes;
    for (std::size_t i = 0; i < count; ++i)
      sizes.push_back({static_cast<std::int64_t>(random() % 300),
                       random() % 3 == 0 ? DType::f64 : DType::f32,
                       random() % 4 == 0 ? Device{Device::Kind::sim, 0} : Device{}});
    std::vector<int> order = reverse_order(count);
    std::ranges::shuffle(order, random);
    BucketLayout layout{order, {}};
    for (std::size_t i = 1; i < count; ++i)
      if (random() % 3 == 0) layout.cuts.push_back(static_cast<int>(i));
    CHECK(layout_from_text(to_text(layout), count) == layout);
    const BucketPlaces places = bucket_places(sizes, layout);
    std::set<int> seen;
    std::map<std::pair<DType, std::string>, std::int64_t> end_of;  // of each piece of memory
    for (const auto& bucket : places.buckets) {
      std::int64_t& end = end_of[{bucket.dtype, bucket.device.to_string()}];
      CHECK(bucket.begin == end);
      int previous = -1;
      std::int64_t inside = 0;
      for (const auto& slot : bucket.slots) {
        const GradientSize& size = sizes[static_cast<std::size_t>(slot.parameter)];
        CHECK(seen.insert(slot.parameter).second);
        CHECK(slot.parameter > previous);
        CHECK(size.dtype == bucket.dtype);
        CHECK(size.device == bucket.device);
        CHECK(slot.offset >= inside);
        CHECK(slot.offset * static_cast<std::int64_t>(size_of(bucket.dtype)) % 64 == 0);
        previous = slot.parameter;
        inside = slot.offset + size.numel;
      }
      CHECK(bucket.numel >= inside);
      end += bucket.numel;
    }
    CHECK(seen.size() == count);
    // Every layout needs as much memory as any other.
    std::map<std::pair<DType, std::string>, std::int64_t> whole;
    for (const auto& bucket : bucket_places(sizes, {reverse_order(count), {}}).buckets)
      whole[{bucket.dtype, bucket.device.to_string()}] += bucket.numel;
    CHECK(whole == end_of);
  }
}

TEST_CASE("an observed order is completed with what was not seen") {
  CHECK(complete_order(std::vector<int>{}, 4) == std::vector<int>{3, 2, 1, 0});
  CHECK(complete_order(std::vector<int>{2, 3, 0, 1}, 4) == std::vector<int>{2, 3, 0, 1});
  CHECK(complete_order(std::vector<int>{4, 2, 0}, 5) == std::vector<int>{4, 3, 2, 1, 0});
  CHECK(complete_order(std::vector<int>{0, 2}, 4) == std::vector<int>{3, 0, 2, 1});
}

// With a loop over all for each, these would take hours.
TEST_CASE("orders and plans of a million parameters" * doctest::test_suite("not-thread")) {
  constexpr int count = 1'000'000;
  std::vector<int> ready;
  for (int p = 0; p < count; p += 3) ready.push_back(p);
  const std::vector<int> order = complete_order(ready, count);
  REQUIRE(order.size() == count);
  std::vector<int> place(count);
  for (int i = 0; i < count; ++i)
    place[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = i;
  int wrong = 0;
  for (std::size_t p = 0; p + 1 < count; ++p) wrong += p % 3 != 0 && place[p] != place[p + 1] + 1;
  CHECK(wrong == 0);
  const std::vector<GradientSize> sizes(count, {1});
  const BucketPlaces places = capped(sizes, {1, 1, 1});
  REQUIRE(places.buckets.size() == count);
  CHECK(places.buckets.back().begin == 16 * (std::int64_t{count} - 1));
}

TEST_CASE("a layout that is none is refused with what is wrong") {
  CHECK_THROWS_WITH_AS(layout_from_text("2 1 / 1", 3), doctest::Contains("2 parameters"),
                       UsageError);
  CHECK_THROWS_WITH_AS(layout_from_text("2 1 1 / 1", 3), doctest::Contains("parameter 1"),
                       UsageError);
  CHECK_THROWS_WITH_AS(layout_from_text("2 1 3 /", 3), doctest::Contains("parameter 3"),
                       UsageError);
  CHECK_THROWS_WITH_AS(layout_from_text("2 1 0 / 3", 3), doctest::Contains("cut 3"), UsageError);
  CHECK_THROWS_WITH_AS(layout_from_text("2 1 0 / 2 1", 3), doctest::Contains("cut 1"), UsageError);
  CHECK_THROWS_WITH_AS(layout_from_text("2 1 0 / 1 1", 3), doctest::Contains("cut 1 after 1"),
                       UsageError);
  CHECK_THROWS_WITH_AS(layout_from_text("2 1 0 / 0", 3), doctest::Contains("cut 0 after 0"),
                       UsageError);
  for (const char* text : {"2 1 x", "2 1 0x", "2x 1 0", "2 1 0 / 1 / 2", "2 1 0 / 1x", "2 1 0 /1",
                           "2 1 0. / 1", "2 1 99999999999"})
    CHECK_THROWS_WITH_AS(layout_from_text(text, 3),
                         fmt::format("[bucket layout] '{}' is not 'order / cuts'", text).c_str(),
                         UsageError);
}

TEST_CASE("the memory is one copy of the gradients and a little alignment") {
  const std::vector<GradientSize> sizes = {{784 * 512}, {512}, {512 * 256}, {256}, {2560}, {10}};
  std::int64_t parameters = 0, planned = 0;
  for (const auto& size : sizes) parameters += size.numel;
  for (const auto& bucket : capped(sizes, {1 << 18}).buckets) planned += bucket.numel;
  CHECK(planned < parameters + parameters / 100);
}
