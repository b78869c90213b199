// Every plan of every algorithm ends with the right sums, with channels of any capacity.

#include "lockstep/dist/collectives/plan/plan.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <numeric>
#include <vector>

#include "dist/collectives/symbolic_world.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

namespace {

Plan planned(const PlanInput& input) {
  Plan plan;
  make_plan(input, plan);
  return plan;
}

// Calls f for every plan of an operation, with tiny and with boundless channels.
template <class F>
void for_all(Operation operation, std::initializer_list<Algorithm> algorithms, F f) {
  for (const Algorithm algorithm : algorithms) {
    for (int world = 1; world <= 8; ++world) {
      for (const std::int64_t count : {0, 1, 2, 3, 5, 7, 8, 9, 16, 17, 40}) {
        for (const std::size_t capacity : {std::size_t{1}, std::size_t{1000}}) {
          const PlanInput plan{operation, algorithm, 0, world, count, 0};
          CAPTURE(name_of(operation));
          CAPTURE(static_cast<int>(algorithm));
          CAPTURE(world);
          CAPTURE(count);
          CAPTURE(capacity);
          SymbolicWorld symbolic(plan, capacity, static_cast<std::uint64_t>(world * 100 + count));
          f(plan, symbolic);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("partition is exact, with the larger parts first") {
  CHECK(partition(10, 3, 0) == Range{0, 4});
  CHECK(partition(10, 3, 1) == Range{4, 7});
  CHECK(partition(10, 3, 2) == Range{7, 10});
  CHECK(partition(1, 3, 0) == Range{0, 1});
  CHECK(partition(1, 3, 2) == Range{1, 1});
  CHECK(partition(std::int64_t{1} << 40, 3, 2).end == std::int64_t{1} << 40);
  for (int parts = 1; parts <= 9; ++parts) {
    for (std::int64_t count = 0; count <= 40; ++count) {
      std::int64_t end = 0;
      for (int k = 0; k < parts; ++k) {
        const Range part = partition(count, parts, k);
        CHECK(part.begin == end);
        CHECK(part.size() >= count / parts);
        CHECK(part.size() <= (count + parts - 1) / parts);
        end = part.end;
      }
      CHECK(end == count);
    }
  }
}

TEST_CASE("all_reduce: every rank ends with every contribution exactly once") {
  for_all(Operation::all_reduce,
          {Algorithm::ring, Algorithm::two_shot, Algorithm::two_shot_shared, Algorithm::one_shot,
           Algorithm::halving},
          [](const PlanInput& plan, SymbolicWorld& world) {
            for (int r = 0; r < plan.world; ++r) {
              for (Sum& element : world.rank(r).buffer) element = contribution(r);
            }
            REQUIRE(world.run());
            for (int r = 0; r < plan.world; ++r) {
              for (const Sum element : world.rank(r).buffer)
                REQUIRE(element == everyone(plan.world));
            }
          });
}

TEST_CASE("hierarchical all_reduce: the same, whichever ranks share a node") {
  const std::vector<std::vector<std::string>> worlds{
      {"a", "a"},           {"a", "b"},           {"a", "a", "b"},
      {"a", "b", "b"},      {"a", "a", "b", "b"}, {"a", "b", "a", "b", "c"},
      {"a", "a", "a", "b"}, {"a", "b", "c", "c"}, {"a", "a", "a", "b", "b", "b", "c", "c"}};
  for (const auto& names : worlds) {
    const NodeMap nodes = node_map(names);
    for (const std::int64_t count : {0, 1, 2, 3, 7, 16, 41}) {
      for (const std::size_t capacity : {std::size_t{1}, std::size_t{1000}}) {
        const int size = static_cast<int>(names.size());
        SymbolicWorld world(
            {Operation::all_reduce, Algorithm::hierarchical, 0, size, count, 0, &nodes}, capacity,
            static_cast<std::uint64_t>(count));
        for (int r = 0; r < size; ++r)
          for (Sum& element : world.rank(r).buffer) element = contribution(r);
        REQUIRE(world.run());
        for (int r = 0; r < size; ++r)
          for (const Sum element : world.rank(r).buffer) REQUIRE(element == everyone(size));
      }
    }
  }
}

TEST_CASE("between two nodes of two ranks travels each byte once each way, per pair of ranks") {
  const NodeMap nodes = node_map({"a", "a", "b", "b"});
  for (int rank = 0; rank < 4; ++rank) {
    std::int64_t across = 0;
    for (const Step& step :
         planned({Operation::all_reduce, Algorithm::hierarchical, rank, 4, 400, 0, &nodes}))
      if (step.to >= 0 && step.to / 2 != rank / 2) across += step.send.size();
    CHECK(across == 200);  // the ring 0 -> 1 -> 2 -> 3 would send 600 from rank 1 alone
  }
}

TEST_CASE("a node map numbers nodes by their first rank") {
  const NodeMap map = node_map({"x", "y", "x", "z", "y"});
  CHECK(map.ranks == std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3}});
  CHECK(map.node_of == std::vector<int>{0, 1, 0, 2, 1});
  CHECK(map.place_of == std::vector<int>{0, 0, 1, 0, 1});
  CHECK(map.local_shards == 1);
}

TEST_CASE("reduce_scatter: every rank ends with the sum of its own part") {
  for_all(Operation::reduce_scatter, {Algorithm::ring, Algorithm::two_shot},
          [](const PlanInput& plan, SymbolicWorld& world) {
            for (int r = 0; r < plan.world; ++r) {
              for (Sum& element : world.rank(r).buffer) element = contribution(r);
            }
            REQUIRE(world.run());
            for (int r = 0; r < plan.world; ++r) {
              for (const Sum element : world.rank(r).part) REQUIRE(element == everyone(plan.world));
            }
          });
}

TEST_CASE("all_gather: every part arrives at its place") {
  for_all(Operation::all_gather, {Algorithm::ring, Algorithm::two_shot, Algorithm::two_shot_shared},
          [](const PlanInput& plan, SymbolicWorld& world) {
            for (int r = 0; r < plan.world; ++r) {
              for (std::size_t i = 0; i < world.rank(r).part.size(); ++i) {
                world.rank(r).part[i] = static_cast<Sum>(plan.part(r).begin) + i;
              }
            }
            REQUIRE(world.run());
            for (int r = 0; r < plan.world; ++r) {
              for (std::size_t i = 0; i < world.rank(r).buffer.size(); ++i) {
                REQUIRE(world.rank(r).buffer[i] == i);
              }
            }
          });
}

TEST_CASE("broadcast: every rank ends with the root's elements, from every root") {
  for (int root = 0; root < 8; ++root) {
    for_all(Operation::broadcast, {Algorithm::two_shot}, [root](PlanInput plan, SymbolicWorld&) {
      if (root >= plan.world) return;
      plan.root = root;
      SymbolicWorld world(plan, 2, 7);
      for (std::size_t i = 0; i < world.rank(root).buffer.size(); ++i)
        world.rank(root).buffer[i] = i;
      REQUIRE(world.run());
      for (int r = 0; r < plan.world; ++r) {
        for (std::size_t i = 0; i < world.rank(r).buffer.size(); ++i) {
          REQUIRE(world.rank(r).buffer[i] == i);
        }
        CHECK(planned(plan).size() <= 5);  // a tree over at most 8 ranks is 3 deep
      }
    });
  }
}

TEST_CASE("barrier: nobody gets out before everybody came in") {
  for (int world = 1; world <= 9; ++world) {
    for (int late = 0; late < world; ++late) {
      // A rank that never begins: knowledge of the others' arrival spreads with every header.
      std::vector<std::vector<bool>> heard(static_cast<std::size_t>(world),
                                           std::vector<bool>(static_cast<std::size_t>(world)));
      for (int r = 0; r < world; ++r)
        heard[static_cast<std::size_t>(r)][static_cast<std::size_t>(r)] = r != late;
      const auto plan_of = [world](int rank) {
        return planned({.operation = Operation::barrier, .rank = rank, .world = world});
      };
      for (std::size_t round = 0; round < plan_of(0).size(); ++round) {
        const auto before = heard;
        for (int r = 0; r < world; ++r) {
          const Step step = plan_of(r)[round];
          for (int k = 0; k < world; ++k) {
            const auto peer = static_cast<std::size_t>(step.from),
                       what = static_cast<std::size_t>(k);
            if (before[peer][what]) heard[static_cast<std::size_t>(r)][what] = true;
          }
          const Step theirs = plan_of(step.from)[round];
          CHECK(theirs.to == r);
          CHECK(step.header);
        }
      }
      for (int r = 0; r < world; ++r) {
        for (int k = 0; k < world; ++k) {
          CHECK(heard[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)] == (k != late));
        }
      }
    }
  }
}

TEST_CASE("every plan begins by greeting the next rank and hearing the one before") {
  for (int world = 2; world <= 9; ++world) {
    for (int rank = 0; rank < world; ++rank) {
      for (const Operation operation :
           {Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather,
            Operation::broadcast, Operation::barrier}) {
        for (const Algorithm algorithm :
             {Algorithm::ring, Algorithm::two_shot, Algorithm::two_shot_shared, Algorithm::one_shot,
              Algorithm::halving, Algorithm::hierarchical, Algorithm::device}) {
          std::vector<std::string> names(static_cast<std::size_t>(world), "a");
          names.back() = "b";
          const NodeMap nodes = node_map(names);
          const Plan plan = planned({operation, algorithm, rank, world, 40, 0, &nodes});
          const Step& first = plan[plan[0].to < 0 ? 1 : 0];  // behind a local copy
          CHECK(first.header);
          CHECK(first.to == (rank + 1) % world);
          CHECK(first.from == (rank + world - 1) % world);
        }
      }
    }
  }
}

TEST_CASE("the ring sends 2 (n-1)/n of the bytes per rank in 2 (n-1) steps") {
  for (int world = 2; world <= 8; ++world) {
    const std::int64_t count = 5 * world;
    const PlanInput plan{Operation::all_reduce, Algorithm::ring, 0, world, count, 0};
    CHECK(std::ssize(planned(plan)) == 2 * (world - 1));
    SymbolicWorld symbolic(plan, 3, 1);
    REQUIRE(symbolic.run());
    for (int r = 0; r < world; ++r) {
      CHECK(symbolic.elements_sent(r) == 2 * (world - 1) * count / world);
    }
  }
}

TEST_CASE("the trace of three ranks that ring.cpp draws") {
  const auto sends = [](int rank, std::size_t step) {
    return planned({Operation::all_reduce, Algorithm::ring, rank, 3, 3, 0})[step].send.begin;
  };
  const std::array<std::array<int, 3>, 4> parts{{{2, 0, 1}, {1, 2, 0}, {0, 1, 2}, {2, 0, 1}}};
  for (std::size_t step = 0; step < 4; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(sends(rank, step) == parts[step][static_cast<std::size_t>(rank)]);
    }
  }
}

TEST_CASE("halving sends 2 (p-1)/p of the bytes per rank in 2 log2(p) steps after its greeting") {
  for (const int world : {2, 4, 8}) {
    const PlanInput plan{Operation::all_reduce, Algorithm::halving, 0, world, 40, 0};
    CHECK(std::ssize(planned(plan)) == 1 + 2 * std::countr_zero(static_cast<unsigned>(world)));
    SymbolicWorld symbolic(plan, 3, 1);
    REQUIRE(symbolic.run());
    for (int r = 0; r < world; ++r)
      CHECK(symbolic.elements_sent(r) == 2 * (world - 1) * 40 / world);
  }
}
