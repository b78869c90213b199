#include "lockstep/core/shape.h"

#include <doctest/doctest.h>

#include <vector>

namespace lockstep {
namespace {

TEST_CASE("shape: sizes, rank, number of elements, text") {
  CHECK(Shape{}.rank() == 0);
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{}.to_string() == "()");
  CHECK(Shape{5}.to_string() == "(5,)");
  const Shape shape{32, 1, 7};
  CHECK(shape.rank() == 3);
  CHECK(shape.numel() == 224);
  CHECK(shape.to_string() == "(32, 1, 7)");
  CHECK(fmt::format("{}", shape) == "(32, 1, 7)");
  CHECK(std::vector<std::int64_t>(shape.begin(), shape.end()) ==
        std::vector<std::int64_t>{32, 1, 7});
  CHECK(shape[0] == 32);
  CHECK(shape[2] == 7);
  CHECK(shape[-1] == 7);
  CHECK(shape[-3] == 32);
}

TEST_CASE("shape: a size of 0 makes it empty, wherever it stands") {
  CHECK(Shape{0}.numel() == 0);
  CHECK(Shape{0, 9}.numel() == 0);
  CHECK(Shape{3, 0, 9}.numel() == 0);
}

TEST_CASE("shape: with other sizes in the place of some") {
  const Shape shape{2, 3, 4};
  CHECK(shape.with(1, 2, {5, 6}) == Shape{2, 5, 6, 4});
  CHECK(shape.with(0, 1, {}) == Shape{3, 4});
  CHECK(shape.with(3, 3, {0}) == Shape{2, 3, 4, 0});
  CHECK(shape.with(0, 3, {}) == Shape{});
  CHECK_THROWS_AS(shape.with(2, 2, {1, 1, 1, 1}), ShapeError);
}

TEST_CASE("shape: equality looks at the rank as well") {
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK(Shape{2, 3} != Shape{3, 2});
  CHECK(Shape{2, 3} != Shape{2, 3, 1});
  CHECK(Shape{} != Shape{1});
  CHECK(Shape{0, 2} != Shape{0, 3});
}

TEST_CASE("shape: what is refused, by value") {
  CHECK_THROWS_WITH_AS((Shape{2, -3}), "[shape] negative size -3 in (2, -3)", ShapeError);
  CHECK_THROWS_WITH_AS((Shape{1, 2, 3, 4, 5, 6, 7}),
                       "[shape] 7 dimensions; at most 6 are supported", ShapeError);
  const std::int64_t big = std::int64_t{1} << 31;
  CHECK(Shape{big, 1 << 28}.numel() == std::int64_t{1} << 59);
  CHECK_THROWS_AS((Shape{big, 1 << 28, 2}), ShapeError);
  CHECK_THROWS_AS((Shape{big, big, 2}), ShapeError);
  CHECK_THROWS_AS((Shape{big, big, big, big}), ShapeError);  // 2^124 is 0 modulo 2^64
  CHECK_THROWS_WITH_AS((void)(Shape{4, 5})[2], "[shape] there is no dimension 2 in (4, 5)",
                       ShapeError);
  CHECK_THROWS_AS((void)(Shape{4, 5})[-3], ShapeError);
  CHECK_THROWS_AS((void)Shape{}[0], ShapeError);
}

// The examples of NumPy's manual, "Broadcasting", and the corner cases.
TEST_CASE("shape: NumPy's broadcasting") {
  const auto broadcast = [](const Shape& a, const Shape& b) {
    const Shape ab = Shape::broadcast("add", a, b);
    CHECK(ab == Shape::broadcast("add", b, a));
    return ab;
  };
  CHECK(broadcast({256, 256, 3}, {3}) == Shape{256, 256, 3});
  CHECK(broadcast({8, 1, 6, 1}, {7, 1, 5}) == Shape{8, 7, 6, 5});
  CHECK(broadcast({5, 4}, {1}) == Shape{5, 4});
  CHECK(broadcast({15, 3, 5}, {15, 1, 5}) == Shape{15, 3, 5});
  CHECK(broadcast({15, 3, 5}, {3, 1}) == Shape{15, 3, 5});
  CHECK(broadcast({}, {}) == Shape{});
  CHECK(broadcast({}, {2, 3}) == Shape{2, 3});
  CHECK(broadcast({0, 4}, {1}) == Shape{0, 4});
  CHECK(broadcast({1}, {0}) == Shape{0});
  CHECK_THROWS_WITH_AS(broadcast({3}, {4}), "[add] shapes do not broadcast: (3,) and (4,)",
                       ShapeError);
  CHECK_THROWS_AS(broadcast({2, 1}, {8, 4, 3}), ShapeError);
  CHECK_THROWS_AS(broadcast({0}, {2}), ShapeError);
}

}  // namespace
}  // namespace lockstep
