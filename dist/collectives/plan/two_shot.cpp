// TWO-SHOT. Every rank sends each part straight to its owner (the first shot); the owner adds up
// what arrived with its own in a balanced binary tree over the ranks (kernels/tree_reduce.h), and
// sends the sum to all (the second shot). Three ranks hold 1 2 3, 10 20 30 and 100 200 300:
//
//     0 --- 1              rank 0                  rank 1                  rank 2
//      \   /    receives   10, 100                 2, 200                  3, 30
//        2      reduces    (1 + 10) + 100 = 111    (2 + 20) + 200 = 222    (3 + 30) + 300 = 333
//               receives   222, 333                111, 333                111, 222
//
//   t = 2 a  +  2 (n-1)/n S b (1 + c (n-2))  +  (n-1)/n S g     sent per rank: 2 (n-1)/n S
//
// The ring's bytes in two hops instead of 2 (n-1); but each rank has n - 1 streams at once, which
// hinder each other: c = `crowd`. The bits of an element depend on the n contributions alone,
// neither on buckets nor on the transport.
//
// TWO-SHOT-SHARED, where the buffer lies in memory that all ranks address. Nothing is copied: tell
// all ranks "mine is ready"; reduce the own part of all ranks' memory into all ranks' memory; tell
// all ranks "reduced".
//
//     memory of rank 0    [  1 |  2 |  3 ]         [ 111 | 222 | 333 ]
//     memory of rank 1    [ 10 | 20 | 30 ]   -->   [ 111 | 222 | 333 ]
//     memory of rank 2    [100 |200 |300 ]         [ 111 | 222 | 333 ]
//                          r. 0  r. 1  r. 2   reads and writes this column
//
//   t = 2 a  +  (n-1)/n S w        w: seconds per byte reduced in place; sent: headers only
//
// An all-gather there does the same, but copies in the place of reducing: each rank writes its own
// part into all ranks' memory.

#include "lockstep/dist/collectives/plan/algorithms.h"

namespace lockstep::dist {

Group everyone(const PlanInput& input) {
  return {.size = input.world,
          .place = input.rank,
          .elements = {0, input.count},
          .owners = input.world};
}

Range Group::part(int member) const {
  if (member >= owners) return {elements.begin, elements.begin};
  const Range own = partition(elements.size(), owners, member);
  return {elements.begin + own.begin, elements.begin + own.end};
}

Step Group::shift(int distance) const {
  return {.to = rank((place + distance) % size), .from = rank(from(distance))};
}

void two_shot_reduce_scatter(const Group& group, Plan& plan) {
  for (int distance = 1; distance < group.size; ++distance) {
    Step step = group.shift(distance);
    step.send = group.part((group.place + distance) % group.size);
    step.receive = group.part(group.place);
    // Of two contributions the other one can be added while it arrives.
    step.into = group.size == 2 ? Step::Into::sum : Step::Into::slot;
    step.slot = group.slot(group.from(distance));
    step.header = true;
    plan.push_back(step);
  }
  if (group.size > 2)
    plan.push_back({.action = Step::Action::reduce_slots,
                    .reduced = group.part(group.place),
                    .sources = group.size,
                    .mine = group.place});
}

void two_shot_all_gather(const Group& group, bool header, Plan& plan) {
  for (int distance = 1; distance < group.size; ++distance) {
    Step step = group.shift(distance);
    step.send = group.part(group.place);
    step.receive = group.part(group.from(distance));
    step.header = header;
    plan.push_back(step);
  }
}

void two_shot_shared(const PlanInput& input, Plan& plan) {
  const auto tell_all = [&] {
    for (int distance = 1; distance < input.world; ++distance) {
      plan.push_back(everyone(input).shift(distance));
      plan.back().header = true;
    }
  };
  const bool gathers = input.operation == Operation::all_gather;
  tell_all();
  if (gathers) plan.push_back({.action = Step::Action::copy_in});
  if (!gathers && input.world > 1) plan.push_back({.action = Step::Action::reduce_regions});
  tell_all();
}

}  // namespace lockstep::dist
