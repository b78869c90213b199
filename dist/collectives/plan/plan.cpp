#include "lockstep/dist/collectives/plan/plan.h"

#include <algorithm>

#include "lockstep/dist/collectives/plan/algorithms.h"

namespace lockstep::dist {
namespace {

void plan_reduce_scatter(const PlanInput& input, Plan& plan) {
  if (input.algorithm == Algorithm::ring)
    ring_reduce_scatter(input, plan);
  else
    two_shot_reduce_scatter(everyone(input), plan);
}

void plan_all_gather(const PlanInput& input, bool header, Plan& plan) {
  if (input.algorithm == Algorithm::ring)
    ring_all_gather(input, header, plan);
  else
    two_shot_all_gather(everyone(input), header, plan);
}

void plan_all_reduce(const PlanInput& input, Plan& plan) {
  switch (input.algorithm) {
    case Algorithm::two_shot_shared: return two_shot_shared(input, plan);
    case Algorithm::one_shot: return one_shot_all_reduce(input, plan);
    case Algorithm::halving: return halving_all_reduce(input, plan);
    case Algorithm::hierarchical: return hierarchical_all_reduce(input, plan);
    default:  // the ring and two-shot consist of these two
      plan_reduce_scatter(input, plan);
      plan_all_gather(input, false, plan);
  }
}

}  // namespace

void make_plan(const PlanInput& input, Plan& plan) {
  plan.clear();
  // The data travel between GPUs: here the ranks only compare headers, and wait for all.
  if (input.algorithm == Algorithm::device) return dissemination_barrier(input, plan);
  switch (input.operation) {
    case Operation::all_reduce: return plan_all_reduce(input, plan);
    case Operation::reduce_scatter:
      plan_reduce_scatter(input, plan);
      plan.push_back({.action = Step::Action::copy_out});
      return;
    case Operation::all_gather:
      if (input.algorithm == Algorithm::two_shot_shared) return two_shot_shared(input, plan);
      plan.push_back({.action = Step::Action::copy_in});
      return plan_all_gather(input, true, plan);
    case Operation::broadcast: return tree_broadcast(input, plan);
    case Operation::barrier: return dissemination_barrier(input, plan);
  }
}

Scratch scratch_of(const Plan& plan) {
  Scratch scratch;
  for (const Step& step : plan) {
    if (step.from < 0) continue;
    scratch.sums |= step.into == Step::Into::sum;
    if (step.into != Step::Into::slot) continue;
    scratch.slots = std::max(scratch.slots, step.slot + 1);
    scratch.slot_elements = std::max(scratch.slot_elements, step.receive.size());
  }
  return scratch;
}

}  // namespace lockstep::dist
