// Plans are carried out symbolically: an element is the multiset of ranks whose contributions are
// in it, a channel a queue of tokens. No bytes, no transport, no executor.

#include "lockstep/dist/collectives/plan/plan.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <vector>

using namespace lockstep;
using namespace lockstep::dist;

namespace {

// Seven bits per rank: how often its contribution is in the sum.
using Sum = std::uint64_t;
Sum contribution(int rank) { return Sum{1} << (7 * rank); }
Sum everyone(int world) {
  Sum sum = 0;
  for (int r = 0; r < world; ++r) sum += contribution(r);
  return sum;
}
constexpr Sum header = ~Sum{0};
constexpr Sum garbage = Sum{127} << 56;

struct RankState {
  PlanInput input;
  Plan plan;
  Scratch scratch;
  std::size_t index = 0;
  std::int64_t sent = 0, received = 0;  // tokens of this step
  std::vector<Sum> buffer, part;
  std::map<int, std::vector<Sum>> slots;  // by number
};

std::int64_t tokens(const Step& step, int peer, Range range) {
  return peer < 0 ? 0 : range.size() + (step.header ? 1 : 0);
}

class SymbolicWorld {
 public:
  SymbolicWorld(PlanInput input, std::size_t capacity, std::uint64_t seed)
      : world_(input.world), capacity_(capacity), random_(seed) {
    for (int r = 0; r < world_; ++r) {
      input.rank = r;
      RankState& rank = ranks_.emplace_back();
      rank.input = input;
      rank.plan = make_plan(input);
      rank.scratch = scratch_of(rank.plan);
      rank.buffer.assign(static_cast<std::size_t>(input.count), garbage);
      rank.part.assign(static_cast<std::size_t>(input.part(r).size()), garbage);
    }
  }

  RankState& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }

  // One token at a time in random order, until nothing moves any more. True if all plans are done.
  bool run() {
    std::vector<int> order(static_cast<std::size_t>(world_));
    std::iota(order.begin(), order.end(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
      for (const int r : order) moved |= advance(rank(r));
    }
    for (const auto& [key, queue] : channels_) {
      if (!queue.empty()) return false;
    }
    for (const RankState& it : ranks_) {
      if (it.index != it.plan.size()) return false;
    }
    return true;
  }

  std::int64_t elements_sent(int r) const {
    const auto it = sent_.find(r);
    return it == sent_.end() ? 0 : it->second;
  }

 private:
  bool advance(RankState& me) {
    if (me.index == me.plan.size()) return false;
    bool moved = false;
    const Step& step = me.plan[me.index];
    if (me.sent < tokens(step, step.to, step.send)) {
      auto& queue = channels_[{me.input.rank, step.to}];
      if (queue.size() < capacity_) {
        const std::int64_t k = me.sent++ - (step.header ? 1 : 0);
        queue.push_back(k < 0 ? header
                              : me.buffer.at(static_cast<std::size_t>(step.send.begin + k)));
        sent_[me.input.rank] += k >= 0;
        moved = true;
      }
    }
    if (me.received < tokens(step, step.from, step.receive)) {
      auto& queue = channels_[{step.from, me.input.rank}];
      if (!queue.empty()) {
        take(me, queue.front());
        queue.pop_front();
        moved = true;
      }
    }
    if (me.sent == tokens(step, step.to, step.send) &&
        me.received == tokens(step, step.from, step.receive)) {
      act(me);
      me.sent = me.received = 0;
      ++me.index;
      moved = true;
    }
    return moved;
  }

  void take(RankState& me, Sum token) {
    const Step& step = me.plan[me.index];
    const std::int64_t k = me.received++ - (step.header ? 1 : 0);
    REQUIRE((token == header) == (k < 0));
    if (k < 0) return;
    const auto at = static_cast<std::size_t>(step.receive.begin + k);
    if (step.into == Step::Into::buffer) me.buffer.at(at) = token;
    if (step.into == Step::Into::sum) me.buffer.at(at) += token;
    if (step.into == Step::Into::slot) {
      REQUIRE(step.slot >= 0);
      REQUIRE(step.slot < me.scratch.slots);
      std::vector<Sum>& slot = me.slots[step.slot];
      if (k == 0) slot.clear();
      slot.push_back(token);
      REQUIRE(std::ssize(slot) <= me.scratch.slot_elements);
    }
    if (step.into == Step::Into::sum) REQUIRE(me.scratch.sums);
  }

  void act(RankState& me) {
    const Step& step = me.plan[me.index];
    const int slots = step.action == Step::Action::reduce_slots ? step.sources - 1
                      : step.action == Step::Action::add_slots  ? step.sources
                                                                : 0;
    for (std::int64_t i = 0; i < (slots > 0 ? step.reduced.size() : 0); ++i)
      for (int k = 0; k < slots; ++k)
        me.buffer.at(static_cast<std::size_t>(step.reduced.begin + i)) +=
            me.slots.at(k).at(static_cast<std::size_t>(i));
    const Range own = me.input.part(me.input.rank);
    for (std::int64_t i = own.begin; i < own.end; ++i) {
      const auto in_buffer = static_cast<std::size_t>(i);
      const auto in_part = static_cast<std::size_t>(i - own.begin);
      Sum sum = 0;
      switch (step.action) {
        case Step::Action::none: break;
        case Step::Action::copy_in: me.buffer.at(in_buffer) = me.part.at(in_part); break;
        case Step::Action::copy_out: me.part.at(in_part) = me.buffer.at(in_buffer); break;
        case Step::Action::reduce_slots:
        case Step::Action::add_slots: break;  // below
        case Step::Action::reduce_regions:
          for (RankState& other : ranks_) sum += other.buffer.at(in_buffer);
          for (RankState& other : ranks_) other.buffer.at(in_buffer) = sum;
          break;
      }
    }
  }

  int world_;
  std::size_t capacity_;
  std::mt19937_64 random_;
  std::vector<RankState> ranks_;
  std::map<std::pair<int, int>, std::deque<Sum>> channels_;
  std::map<int, std::int64_t> sent_;
};

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
         make_plan({Operation::all_reduce, Algorithm::hierarchical, rank, 4, 400, 0, &nodes}))
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
  for_all(Operation::all_gather, {Algorithm::ring, Algorithm::two_shot},
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
        CHECK(make_plan(plan).size() <= 5);  // a tree over at most 8 ranks is 3 deep
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
        return make_plan({.operation = Operation::barrier, .rank = rank, .world = world});
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
          const Plan plan = make_plan({operation, algorithm, rank, world, 40, 0, &nodes});
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
    CHECK(std::ssize(make_plan(plan)) == 2 * (world - 1));
    SymbolicWorld symbolic(plan, 3, 1);
    REQUIRE(symbolic.run());
    for (int r = 0; r < world; ++r) {
      CHECK(symbolic.elements_sent(r) == 2 * (world - 1) * count / world);
    }
  }
}

TEST_CASE("the trace of three ranks that ring.cpp draws") {
  const auto sends = [](int rank, std::size_t step) {
    return make_plan({Operation::all_reduce, Algorithm::ring, rank, 3, 3, 0})[step].send.begin;
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
    CHECK(std::ssize(make_plan(plan)) == 1 + 2 * std::countr_zero(static_cast<unsigned>(world)));
    SymbolicWorld symbolic(plan, 3, 1);
    REQUIRE(symbolic.run());
    for (int r = 0; r < world; ++r)
      CHECK(symbolic.elements_sent(r) == 2 * (world - 1) * 40 / world);
  }
}
