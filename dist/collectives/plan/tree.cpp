// BROADCAST. A binomial tree over v = (rank - root) mod n: in round k the 2^k ranks that have the
// data send it to v + 2^k. Six ranks, root 2: 2->3, then 2->4 3->5, then 2->0 3->1.
//
//   t = a  +  ceil(log2 n) (a + S b)                         the first `a` is the greeting
//
// BARRIER. Dissemination: in round k rank r signals r + 2^k and hears r - 2^k, so that after
// ceil(log2 n) rounds every rank has heard, through others, from every rank (Hensgen, Finkel and
// Manber, Two algorithms for barrier synchronization, 1988). Five ranks, rank 0: signals 1, 2, 4
// and hears 4, 3, 1.
//
//   t = ceil(log2 n) a

#include <bit>

#include "lockstep/dist/collectives/plan/algorithms.h"

namespace lockstep::dist {

void greet(const PlanInput& input, Plan& plan) {
  if (input.world == 1) return;
  plan.push_back(everyone(input).shift(1));
  plan.back().header = true;
}

void tree_broadcast(const PlanInput& input, Plan& plan) {
  const int n = input.world, v = (input.rank - input.root + n) % n;
  const auto rank_of = [&](int place) { return (place + input.root) % n; };
  const Range all{0, input.count};
  greet(input, plan);
  // v hears from the place without its highest bit, in the round of that bit, and sends afterwards.
  const auto highest = static_cast<int>(std::bit_floor(static_cast<unsigned>(v)));
  if (v > 0) plan.push_back({.from = rank_of(v - highest), .receive = all, .header = true});
  for (int bit = v == 0 ? 1 : 2 * highest; v + bit < n; bit *= 2)
    plan.push_back({.to = rank_of(v + bit), .send = all, .header = true});
}

void dissemination_barrier(const PlanInput& input, Plan& plan) {
  for (int distance = 1; distance < input.world; distance *= 2) {
    plan.push_back(everyone(input).shift(distance));
    plan.back().header = true;
  }
}

}  // namespace lockstep::dist
