#pragma once
// Plans are carried out symbolically: an element is the multiset of ranks whose contributions are
// in it, a channel a queue of tokens. No bytes, no transport, no executor.

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "lockstep/dist/collectives/plan/plan.h"

namespace lockstep::dist::testing {

// Seven bits per rank: how often its contribution is in the sum.
using Sum = std::uint64_t;
inline Sum contribution(int rank) { return Sum{1} << (7 * rank); }
inline Sum everyone(int world) {
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

inline std::int64_t tokens(const Step& step, int peer, Range range) {
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
      make_plan(input, rank.plan);
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
        case Step::Action::copy_in:
          me.buffer.at(in_buffer) = me.part.at(in_part);
          if (me.input.algorithm == Algorithm::two_shot_shared)
            for (RankState& other : ranks_) other.buffer.at(in_buffer) = me.part.at(in_part);
          break;
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

}  // namespace lockstep::dist::testing
