#include "lockstep/dist/plan.h"

#include <array>
#include <bit>

namespace lockstep::dist {

namespace {

// Over streams: below this many bytes latency decides, and direct has the fewer hops.
constexpr std::size_t latency_bound_bytes = 64 * 1024;

// A plan is a row of phases, a phase a number of like steps.
enum class Phase : std::uint8_t {
  none,
  copy_in,
  copy_out,
  ring_reduce,
  ring_gather,
  direct_collect,
  direct_share,
  fold_slots,
  fold_windows,
  announce,
  greet,
  tree,
  dissemination,
};
using Phases = std::array<Phase, 3>;

Phases phases(Operation operation, Algorithm algorithm) {
  using enum Phase;
  const bool ring = algorithm == Algorithm::ring;
  switch (operation) {
    case Operation::all_reduce:
      if (algorithm == Algorithm::shared) return {announce, fold_windows, announce};
      return ring ? Phases{ring_reduce, ring_gather}
                  : Phases{direct_collect, fold_slots, direct_share};
    case Operation::reduce_scatter:
      return ring ? Phases{ring_reduce, copy_out} : Phases{direct_collect, fold_slots, copy_out};
    case Operation::all_gather:
      return ring ? Phases{copy_in, ring_gather} : Phases{copy_in, direct_share};
    case Operation::broadcast:
      return {greet, tree};
    case Operation::barrier:
      return {dissemination};
  }
  return {};
}

int floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }
int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// The place of a rank in the tree of a broadcast: the root is 0. It hears from `v` without its
// highest bit, in the round of that bit, and sends in the rounds after it.
struct TreePlace {
  explicit TreePlace(const Plan& plan)
      : v((plan.rank - plan.root + plan.world) % plan.world),
        first_round(v == 0 ? 0 : floor_log2(v) + 1),
        children(0) {
    while ((std::int64_t{1} << (first_round + children)) + v < plan.world) ++children;
  }
  int parent() const { return v - (1 << floor_log2(v)); }
  int child(int k) const { return v + (1 << (first_round + k)); }

  int v;
  int first_round;
  int children;
};

int length(const Plan& plan, Phase phase) {
  switch (phase) {
    case Phase::none:
      return 0;
    case Phase::copy_in:
    case Phase::copy_out:
      return 1;
    case Phase::fold_slots:
    case Phase::fold_windows:
    case Phase::greet:
      return plan.world > 1 ? 1 : 0;
    case Phase::ring_reduce:
    case Phase::ring_gather:
    case Phase::direct_collect:
    case Phase::direct_share:
    case Phase::announce:
      return plan.world - 1;
    case Phase::tree: {
      const TreePlace place(plan);
      return (place.v == 0 ? 0 : 1) + place.children;
    }
    case Phase::dissemination:
      return ceil_log2(plan.world);
  }
  return 0;
}

// Sends to the rank `distance` further on and receives from the one as far behind.
Step shift(const Plan& plan, int distance) {
  Step step;
  step.to = (plan.rank + distance) % plan.world;
  step.from = (plan.rank - distance + plan.world) % plan.world;
  return step;
}

// Ring steps: the part `back` places behind goes out, the one behind it comes in.
Step ring_step(const Plan& plan, int back, Step::Into into) {
  const auto behind = [&](int k) {
    return plan.part((plan.rank - k + 2 * plan.world) % plan.world);
  };
  Step step = shift(plan, 1);
  step.send = behind(back);
  step.receive = behind(back + 1);
  step.into = into;
  return step;
}

Step direct_step(const Plan& plan, int distance, bool collect) {
  Step step = shift(plan, distance);
  step.send = plan.part(collect ? step.to : plan.rank);
  step.receive = plan.part(collect ? plan.rank : step.from);
  step.into = collect ? Step::Into::slot : Step::Into::buffer;
  return step;
}

Step tree_step(const Plan& plan, int s) {
  const TreePlace place(plan);
  const auto rank_of = [&](int v) { return (v + plan.root) % plan.world; };
  const Range all{0, plan.count};
  Step step;
  step.header = true;
  if (place.v != 0 && s == 0) {
    step.from = rank_of(place.parent());
    step.receive = all;
  } else {
    step.to = rank_of(place.child(place.v == 0 ? s : s - 1));
    step.send = all;
  }
  return step;
}

Step act(Step::Action action) {
  Step step;
  step.action = action;
  return step;
}

// Step s of a phase. `first`: no phase before it has talked to anybody.
Step step_of(const Plan& plan, Phase phase, int s, bool first) {
  Step step;
  switch (phase) {
    case Phase::none:
      break;
    case Phase::copy_in:
      return act(Step::Action::copy_in);
    case Phase::copy_out:
      return act(Step::Action::copy_out);
    case Phase::fold_slots:
      return act(Step::Action::fold_slots);
    case Phase::fold_windows:
      return act(Step::Action::fold_windows);
    case Phase::tree:
      return tree_step(plan, s);
    case Phase::ring_reduce:
      step = ring_step(plan, s + 1, Step::Into::sum);
      step.header = s == 0;
      break;
    case Phase::ring_gather:
      step = ring_step(plan, s, Step::Into::buffer);
      step.header = first && s == 0;
      break;
    case Phase::direct_collect:
      step = direct_step(plan, s + 1, true);
      step.header = true;
      break;
    case Phase::direct_share:
      step = direct_step(plan, s + 1, false);
      step.header = first;
      break;
    case Phase::announce:
    case Phase::greet:
      step = shift(plan, s + 1);
      step.header = true;
      break;
    case Phase::dissemination:
      step = shift(plan, 1 << s);
      step.header = true;
      break;
  }
  return step;
}

}  // namespace

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_gather:
      return "all_gather";
    case Operation::broadcast:
      return "broadcast";
    case Operation::barrier:
      return "barrier";
  }
  return "?";
}

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic:
      return "auto";
    case Algorithm::ring:
      return "ring";
    case Algorithm::direct:
    case Algorithm::shared:
      return "direct";
  }
  return "?";
}

Range partition(std::int64_t count, int parts, int index) {
  const std::int64_t size = count / parts;
  const std::int64_t larger = count % parts;  // so many parts have one element more
  const auto begin = [&](std::int64_t k) { return k * size + (k < larger ? k : larger); };
  return {begin(index), begin(index + 1)};
}

Algorithm choose(Algorithm requested, Operation operation, std::size_t bytes, int world,
                 bool shared_memory, bool in_window) {
  const bool direct = requested == Algorithm::direct ||
                      (requested == Algorithm::automatic &&
                       (shared_memory || world <= 2 || bytes <= latency_bound_bytes));
  if (!direct) return Algorithm::ring;
  return operation == Operation::all_reduce && in_window ? Algorithm::shared : Algorithm::direct;
}

int Plan::steps() const {
  int sum = 0;
  for (const Phase phase : phases(operation, algorithm)) sum += length(*this, phase);
  return sum;
}

Step Plan::step(int index) const {
  const Phases row = phases(operation, algorithm);
  const bool copies_first = row[0] == Phase::copy_in;
  for (std::size_t k = 0; k < row.size(); ++k) {
    const int steps_here = length(*this, row[k]);
    if (index < steps_here) return step_of(*this, row[k], index, k == (copies_first ? 1u : 0u));
    index -= steps_here;
  }
  fail<StateError>("[plan] {} has {} steps, asked for one that is {} beyond", name_of(operation),
                   steps(), index);
}

int Plan::slots() const {
  const bool reduces = operation == Operation::all_reduce || operation == Operation::reduce_scatter;
  return reduces && algorithm == Algorithm::direct ? world - 1 : 0;
}

bool Plan::sums() const {
  const bool reduces = operation == Operation::all_reduce || operation == Operation::reduce_scatter;
  return reduces && algorithm == Algorithm::ring && world > 1;
}

}  // namespace lockstep::dist
