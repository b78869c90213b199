// Lanes: who owns which, and that a rank's node and the tree over the ranks are the lanes' tree.

#include "lockstep/core/lanes.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <numeric>
#include <string>

#include "lockstep/core/error.h"

using namespace lockstep;

namespace {

// The tree over the lanes [first, first + count), by halves.
std::string lanes_tree(int first, int count) {
  if (count == 1) return std::to_string(first);
  return fmt::format("({}+{})", lanes_tree(first, count / 2),
                     lanes_tree(first + count / 2, count / 2));
}

// kernels/tree_reduce.h: n sources are cut at the largest power of two below n.
std::string ranks_tree(int first, int n, int size, int lanes) {
  if (n == 1) {
    const LaneRange own = lanes_of({first, size}, lanes);
    return lanes_tree(own.first, own.count);
  }
  int cut = 1;
  while (2 * cut < n) cut *= 2;
  return fmt::format("({}+{})", ranks_tree(first, cut, size, lanes),
                     ranks_tree(first + cut, n - cut, size, lanes));
}

}  // namespace

TEST_CASE("lanes: on any number of ranks the same tree, every lane once") {
  for (int lanes = 1; lanes <= max_lanes; lanes *= 2)
    for (int size = 1; size <= lanes; ++size) {
      CAPTURE(lanes);
      CAPTURE(size);
      int needed = 1;
      while (needed < size) needed *= 2;
      if (lanes < needed) {
        CHECK_THROWS_AS((void)lanes_of({0, size}, lanes), UsageError);
        continue;
      }
      CHECK(ranks_tree(0, size, size, lanes) == lanes_tree(0, lanes));
      int next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const LaneRange own = lanes_of({rank, size}, lanes);
        CHECK(own.first == next);
        CHECK(own.count > 0);
        next += own.count;
      }
      CHECK(next == lanes);
    }
}

TEST_CASE("lanes: rows are cut alike, whoever has them") {
  for (const std::int64_t rows : {0, 1, 5, 8, 9, 100, 255, 256})
    for (const int lanes : {1, 2, 8, 64}) {
      CAPTURE(rows);
      CAPTURE(lanes);
      CHECK(lane_begin(rows, lanes, 0) == 0);
      CHECK(lane_begin(rows, lanes, lanes) == rows);
      const std::int64_t each = (rows + lanes - 1) / lanes;
      for (int lane = 0; lane < lanes; ++lane) {
        const std::int64_t size = lane_begin(rows, lanes, lane + 1) - lane_begin(rows, lanes, lane);
        CHECK(size >= 0);
        CHECK(size <= each);
        if (size < each && lane + 1 < lanes)  // then nothing is left behind it
          CHECK(lane_begin(rows, lanes, lane + 1) == rows);
      }
      for (const int size : {1, 2, 3, 5}) {
        if (lanes < 8 && size > lanes) continue;
        if (lanes == 2 && size == 3) continue;
        std::int64_t first = 0;
        for (int rank = 0; rank < size; ++rank) {
          const Lanes own(rows, lanes, {rank, size});
          const LaneRange range = lanes_of({rank, size}, lanes);
          CHECK(own.total() == lanes);
          CHECK(own.first() == range.first);
          CHECK(own.count() == range.count);
          CHECK(own.all_rows() == rows);
          CHECK(own.first_row() == first);
          for (int k = 0; k < own.count(); ++k) {
            CHECK(own.offsets()[static_cast<std::size_t>(k)] + first ==
                  lane_begin(rows, lanes, range.first + k));
            CHECK(own.rows_of(k) == lane_begin(rows, lanes, range.first + k + 1) -
                                        lane_begin(rows, lanes, range.first + k));
          }
          first += own.rows();
        }
        CHECK(first == rows);
      }
    }
}

TEST_CASE("lanes: which first dimensions count samples") {
  const Lanes lanes(12, 4, {1, 2});  // rows 6..11, in lanes of 3
  CHECK(lanes.counts(6));
  CHECK(lanes.counts(18));
  for (const std::int64_t size : {0, 1, 5, 7}) CHECK_FALSE(lanes.counts(size));
  CHECK(lanes.offsets(6) == std::vector<std::int64_t>{0, 3, 6});
  CHECK(lanes.offsets(18) == std::vector<std::int64_t>{0, 9, 18});
  const Lanes none(1, 4, {1, 2});
  CHECK(none.rows() == 0);
  CHECK(none.counts(0));
  CHECK_FALSE(none.counts(4));
  CHECK(none.offsets(0) == std::vector<std::int64_t>{0, 0, 0});
}

TEST_CASE("lanes: what a weight says of a part: each of its numbers has to fit") {
  const Lanes lanes(12, 4, {1, 2});  // 6 of 12 rows
  for (const double local : {6.0, 5.0, 0.0, 12.0})
    for (const double total : {12.0, 6.0, 0.0, Weight::summed})
      for (const int count : {4, 0, 2, 8}) {
        Weight weight(local, total);
        weight.lanes = count;
        CAPTURE(local);
        CAPTURE(total);
        CAPTURE(count);
        CHECK(lanes.have(weight) == (local == 6 && (total == 12 || total == Weight::summed) &&
                                     (count == 4 || count == 0)));
      }
}

TEST_CASE("lanes: scopes") {
  CHECK(current_lanes() == nullptr);
  const auto outer = std::make_shared<const Lanes>(4, 2, Shard{});
  const auto inner = std::make_shared<const Lanes>(8, 2, Shard{});
  {
    LaneScope a(outer);
    CHECK(current_lanes() == outer);
    {
      LaneScope b(inner);
      const LaneScope copy = b;  // which ends nothing
      CHECK(current_lanes() == inner);
      b.set(nullptr);
      CHECK(current_lanes() == nullptr);
    }
    CHECK(current_lanes() == outer);
  }
  CHECK(current_lanes() == nullptr);
}

TEST_CASE("lanes: what is refused, by value") {
  for (const int lanes : {-1, 0, 3, 6, 128})
    CHECK_THROWS_WITH_AS(
        (void)lanes_of({0, 1}, lanes),
        fmt::format("[lanes] {} lanes: a power of two up to 64 is needed", lanes).c_str(),
        UsageError);
  CHECK_THROWS_WITH_AS((void)lanes_of({0, 5}, 4),
                       "[lanes] 4 lanes for 5 ranks: at least 8 are needed", UsageError);
  CHECK_THROWS_WITH_AS((void)lanes_of({2, 2}, 4), "[lanes] there is no rank 2 of 2", UsageError);
}
