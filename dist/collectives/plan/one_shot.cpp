// ONE-SHOT. Every rank sends all it has to all others, and each reduces everything itself, in the
// tree of two-shot, so with the same bits. One hop, for small messages. Three ranks hold 1, 10 and
// 100: rank 0 receives 10 and 100, rank 1 receives 1 and 100, rank 2 receives 1 and 10; each
// computes (1 + 10) + 100 = 111.
//
//   t = a  +  (n-1) S (b (1 + c (n-2)) + g)                  sent per rank: (n-1) S

#include "lockstep/dist/collectives/plan/algorithms.h"

namespace lockstep::dist {

void one_shot_all_reduce(const PlanInput& input, Plan& plan) {
  const Group all = everyone(input);
  for (int distance = 1; distance < all.size; ++distance) {
    Step step = all.shift(distance);
    step.send = step.receive = all.elements;
    step.into = Step::Into::slot;
    step.slot = all.slot(all.from(distance));
    step.header = true;
    plan.push_back(step);
  }
  if (all.size > 1)
    plan.push_back({.action = Step::Action::reduce_slots,
                    .reduced = all.elements,
                    .sources = all.size,
                    .mine = all.place});
}

}  // namespace lockstep::dist
