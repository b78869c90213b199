#include "lockstep/dist/collectives/plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "lockstep/dist/collectives/halving.h"

namespace lockstep::dist {

namespace {

// A plan is a row of phases, a phase a number of like steps among the ranks of a scope.
enum class Phase : std::uint8_t {
  none,
  copy_in,
  copy_out,
  ring_reduce,
  ring_gather,
  collect,
  share,
  exchange,
  fold_slots,
  fold_all,
  reduce_regions,
  announce,
  greet,
  halve,
  rest_in,
  fold_rest,
  twice,
  rest_out,
  tree,
  dissemination,
};
// Ranks among which a phase happens, and what they work on.
enum class Scope : std::uint8_t {
  world,   // all ranks, on the buffer
  node,    // those of this machine, on the buffer
  across,  // those with the same place in their nodes, on the shard of that place
};
struct Stage {
  Phase phase = Phase::none;
  Scope scope = Scope::world;
};
using Stages = std::span<const Stage>;

// One row for each way of doing something. (Tables, because they are read for every call.)
namespace rows {
using enum Phase;
using enum Scope;
constexpr Stage ring[] = {{ring_reduce}, {ring_gather}};
constexpr Stage direct[] = {{collect}, {fold_slots}, {share}};
constexpr Stage shared[] = {{announce}, {reduce_regions}, {announce}};
constexpr Stage one_shot[] = {{exchange}, {fold_all}};
constexpr Stage halving[] = {{greet}, {halve}, {rest_in}, {fold_rest}, {twice}, {rest_out}};
constexpr Stage hierarchical[] = {{greet},           {collect, node},      {fold_slots, node},
                                  {collect, across}, {fold_slots, across}, {share, across},
                                  {share, node}};
constexpr Stage ring_scatter[] = {{ring_reduce}, {copy_out}};
constexpr Stage direct_scatter[] = {{collect}, {fold_slots}, {copy_out}};
constexpr Stage ring_gather_only[] = {{copy_in}, {ring_gather}};
constexpr Stage direct_gather[] = {{copy_in}, {share}};
constexpr Stage broadcast[] = {{greet}, {tree}};
constexpr Stage barrier[] = {{dissemination}};
}  // namespace rows

Stages all_reduce_stages(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::ring: return rows::ring;
    case Algorithm::shared: return rows::shared;
    case Algorithm::one_shot: return rows::one_shot;
    case Algorithm::halving: return rows::halving;
    case Algorithm::hierarchical: return rows::hierarchical;
    default: return rows::direct;
  }
}

Stages stages(const Plan& plan) {
  const bool ring = plan.algorithm == Algorithm::ring;
  if (plan.algorithm == Algorithm::device) return rows::barrier;
  switch (plan.operation) {
    case Operation::all_reduce: return all_reduce_stages(plan.algorithm);
    case Operation::reduce_scatter: return ring ? Stages(rows::ring_scatter) : rows::direct_scatter;
    case Operation::all_gather: return ring ? Stages(rows::ring_gather_only) : rows::direct_gather;
    case Operation::broadcast: return rows::broadcast;
    case Operation::barrier: return rows::barrier;
  }
  return {};
}

// The ranks of a scope, as one of them sees it.
struct Group {
  Group(const Plan& plan_, Scope scope_) : plan(plan_), scope(scope_) {
    size = parts = plan.world;
    place = plan.rank;
    whole = {0, plan.count};
    if (scope == Scope::world) return;
    const NodeMap& nodes = *plan.nodes;
    const int node = nodes.node_of[index(plan.rank)];
    place = nodes.place_of[index(plan.rank)];
    size = static_cast<int>(nodes.ranks[index(node)].size());
    parts = nodes.local_shards;
    if (scope == Scope::node) return;
    takes_part = place < nodes.local_shards;
    whole = partition(plan.count, nodes.local_shards, place);
    place = node;
    size = parts = static_cast<int>(nodes.ranks.size());
  }

  int rank(int k) const {
    switch (scope) {
      case Scope::world: return k;
      case Scope::node:
        return plan.nodes->ranks[index(plan.nodes->node_of[index(plan.rank)])][index(k)];
      case Scope::across:
        return plan.nodes->ranks[index(k)][index(plan.nodes->place_of[index(plan.rank)])];
    }
    return k;
  }
  // What the k-th of them owns; the last ones may own nothing.
  Range part(int k) const {
    if (!takes_part || k >= parts) return {whole.begin, whole.begin};
    const Range own = partition(whole.size(), parts, k);
    return {whole.begin + own.begin, whole.begin + own.end};
  }
  int slot(int k) const { return k < place ? k : k - 1; }

  const Plan& plan;
  Scope scope;
  int size, place, parts;
  Range whole;
  bool takes_part = true;
};

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

int length(const Plan& plan, Stage stage) {
  const Group group(plan, stage.scope);
  const bool of_power = plan.rank < halving::power(plan.world);
  switch (stage.phase) {
    case Phase::none: return 0;
    case Phase::copy_in:
    case Phase::copy_out: return 1;
    case Phase::fold_slots: return group.takes_part && group.size > 2 ? 1 : 0;
    case Phase::fold_all:
    case Phase::reduce_regions:
    case Phase::greet: return group.takes_part && group.size > 1 ? 1 : 0;
    case Phase::ring_reduce:
    case Phase::ring_gather:
    case Phase::collect:
    case Phase::share:
    case Phase::exchange:
    case Phase::announce: return group.takes_part ? group.size - 1 : 0;
    case Phase::halve:
    case Phase::twice: return of_power ? floor_log2(plan.world) : 0;
    case Phase::rest_in: return of_power ? halving::rest(plan.world) : halving::power(plan.world);
    case Phase::fold_rest: return of_power && halving::rest(plan.world) > 0 ? 1 : 0;
    case Phase::rest_out: return of_power && plan.rank >= halving::rest(plan.world) ? 0 : 1;
    case Phase::tree: {
      const TreePlace place(plan);
      return (place.v == 0 ? 0 : 1) + place.children;
    }
    case Phase::dissemination: return ceil_log2(plan.world);
  }
  return 0;
}

// Sends to the member `distance` further on and receives from the one as far behind.
Step shift(const Group& group, int distance) {
  Step step;
  step.to = group.rank((group.place + distance) % group.size);
  step.from = group.rank((group.place - distance + group.size) % group.size);
  return step;
}

// Ring steps: the part `back` places behind goes out, the one behind it comes in.
Step ring_step(const Group& group, int back, Step::Into into) {
  const auto behind = [&](int k) {
    return group.part((group.place - k + 2 * group.size) % group.size);
  };
  Step step = shift(group, 1);
  step.send = behind(back);
  step.receive = behind(back + 1);
  step.into = into;
  return step;
}

// Of two contributions the other one can be added while it comes.
bool adds_at_once(const Group& group, Phase phase) {
  return phase == Phase::collect && group.size == 2;
}

Step direct_step(const Group& group, int distance, Phase phase) {
  const int to = (group.place + distance) % group.size;
  const int from = (group.place - distance + group.size) % group.size;
  Step step = shift(group, distance);
  step.slot = group.slot(from);
  step.into = phase == Phase::share        ? Step::Into::buffer
              : adds_at_once(group, phase) ? Step::Into::sum
                                           : Step::Into::slot;
  if (phase == Phase::exchange) {
    step.send = step.receive = group.whole;
  } else {
    step.send = group.part(phase == Phase::collect ? to : group.place);
    step.receive = group.part(phase == Phase::collect ? group.place : from);
  }
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

Step fold(Step::Action action, Range range, int sources, int mine) {
  Step step = act(action);
  step.fold = range;
  step.sources = sources;
  step.mine = mine;
  return step;
}

// Step s of a stage. `first`: no stage before it has talked to anybody.
Step step_of(const Plan& plan, Stage stage, int s, bool first) {
  using enum Step::Action;
  const Group group(plan, stage.scope);
  const int levels = floor_log2(plan.world);
  Step step;
  switch (stage.phase) {
    case Phase::none: break;
    case Phase::copy_in: return act(copy_in);
    case Phase::copy_out: return act(copy_out);
    case Phase::reduce_regions: return act(reduce_regions);
    case Phase::fold_slots:
      return fold(fold_slots, group.part(group.place), group.size, group.place);
    case Phase::fold_all: return fold(fold_slots, group.whole, group.size, group.place);
    case Phase::fold_rest:
      return fold(fold_rest, halving::kept(plan, plan.rank, levels), halving::rest(plan.world), 0);
    case Phase::tree: return tree_step(plan, s);
    case Phase::halve: return halving::exchange(plan, s, true);
    case Phase::twice: return halving::exchange(plan, levels - 1 - s, false);
    case Phase::rest_in: return halving::rest_in(plan, s);
    case Phase::rest_out: return halving::rest_out(plan);
    case Phase::ring_reduce:
      step = ring_step(group, s + 1, Step::Into::sum);
      step.header = s == 0;
      break;
    case Phase::ring_gather:
      step = ring_step(group, s, Step::Into::buffer);
      step.header = first && s == 0;
      break;
    case Phase::collect:
    case Phase::exchange:
    case Phase::share:
      step = direct_step(group, s + 1, stage.phase);
      step.header = first || stage.phase != Phase::share;
      break;
    case Phase::announce:
    case Phase::greet:
      step = shift(group, s + 1);
      step.header = true;
      break;
    case Phase::dissemination:
      step = shift(group, 1 << s);
      step.header = true;
      break;
  }
  return step;
}

}  // namespace

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::all_gather: return "all_gather";
    case Operation::broadcast: return "broadcast";
    case Operation::barrier: return "barrier";
  }
  return "?";
}

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic: return "auto";
    case Algorithm::ring: return "ring";
    case Algorithm::direct: return "direct";
    case Algorithm::shared: return "shared";
    case Algorithm::one_shot: return "one-shot";
    case Algorithm::halving: return "halving";
    case Algorithm::hierarchical: return "hierarchical";
    case Algorithm::device: return "device";
  }
  return "?";
}

Range partition(std::int64_t count, int parts, int index) {
  const std::int64_t size = count / parts;
  const std::int64_t larger = count % parts;  // so many parts have one element more
  const auto begin = [&](std::int64_t k) { return k * size + (k < larger ? k : larger); };
  return {begin(index), begin(index + 1)};
}

int Plan::steps() const {
  int sum = 0;
  for (const Stage stage : stages(*this)) sum += length(*this, stage);
  return sum;
}

Step Plan::step(int index) const {
  const Stages row = stages(*this);
  const bool copies_first = row[0].phase == Phase::copy_in;
  for (std::size_t k = 0; k < row.size(); ++k) {
    const int steps_here = length(*this, row[k]);
    if (index < steps_here) return step_of(*this, row[k], index, k == (copies_first ? 1u : 0u));
    index -= steps_here;
  }
  fail<StateError>("[plan] {} has {} steps, asked for one that is {} beyond", name_of(operation),
                   steps(), index);
}

int Plan::slots() const {
  int most = 0;
  for (const Stage stage : stages(*this)) {
    const Group group(*this, stage.scope);
    if (adds_at_once(group, stage.phase)) continue;
    if (stage.phase == Phase::collect || stage.phase == Phase::exchange)
      most = std::max(most, length(*this, stage));
    if (stage.phase == Phase::rest_in && rank < halving::power(world)) most = halving::rest(world);
  }
  return most;
}

std::int64_t Plan::slot_elements() const {
  std::int64_t most = 0;
  for (const Stage stage : stages(*this)) {
    const Group group(*this, stage.scope);
    if (stage.phase == Phase::collect && !adds_at_once(group, stage.phase))
      most = std::max(most, group.part(group.place).size());
    if (stage.phase == Phase::exchange) most = count;
    if (stage.phase == Phase::rest_in)
      most =
          rank < halving::power(world) ? halving::kept(*this, rank, floor_log2(world)).size() : 0;
  }
  return most;
}

bool Plan::sums() const {
  for (const Stage stage : stages(*this))
    if ((stage.phase == Phase::ring_reduce || stage.phase == Phase::halve ||
         adds_at_once(Group(*this, stage.scope), stage.phase)) &&
        length(*this, stage) > 0)
      return true;
  return false;
}

}  // namespace lockstep::dist
