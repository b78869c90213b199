#include "lockstep/dist/collectives/halving.h"

namespace lockstep::dist::halving {

Range kept(const Plan& plan, int r, int levels) {
  Range range{0, plan.count};
  for (int level = 0; level < levels; ++level) {
    const std::int64_t middle = range.begin + range.size() / 2;
    if (r >> level & 1)
      range.begin = middle;
    else
      range.end = middle;
  }
  return range;
}

Step exchange(const Plan& plan, int level, bool reduce) {
  Step step;
  step.to = step.from = plan.rank ^ (1 << level);
  const Range mine = kept(plan, plan.rank, level + 1), theirs = kept(plan, step.to, level + 1);
  step.send = reduce ? theirs : mine;
  step.receive = reduce ? mine : theirs;
  step.into = reduce ? Step::Into::sum : Step::Into::buffer;
  step.header = reduce;
  return step;
}

Step rest_in(const Plan& plan, int s) {
  const int levels = std::countr_zero(static_cast<unsigned>(power(plan.world)));
  Step step;
  step.header = true;
  if (plan.rank >= power(plan.world)) {
    step.to = s;
    step.send = kept(plan, s, levels);
  } else {
    step.from = power(plan.world) + s;
    step.receive = kept(plan, plan.rank, levels);
    step.into = Step::Into::slot;
    step.slot = s;
  }
  return step;
}

Step rest_out(const Plan& plan) {
  Step step;
  step.header = true;
  if (plan.rank >= power(plan.world)) {
    step.from = plan.rank - power(plan.world);
    step.receive = {0, plan.count};
  } else {
    step.to = plan.rank + power(plan.world);
    step.send = {0, plan.count};
  }
  return step;
}

}  // namespace lockstep::dist::halving
