// HALVING: recursive halving and doubling (Thakur, Rabenseifner and Gropp, Optimization of
// Collective Communication Operations in MPICH, 2005, section 4.4). Partners at distance 1, 2, 4,
// ... exchange halves of what they still reduce; then they gather it back in the reverse order. The
// rank whose number has a 0 at that bit keeps the lower half. After the step with distance d a rank
// holds sums over its aligned group of 2 d ranks: one level of the tree of two-shot.
//
//     distance 1    0---1   2---3
//     distance 2    0-------2, 1-------3
//
//     four elements   rank 0                rank 1           rank 2             rank 3
//     at first        1 2 3 4               10 20 30 40      100 200 300 400    1000 2000 3000 4000
//     distance 1      11 22 . .             . . 33 44        1100 2200 . .      . . 3300 4400
//     distance 2      1111 . . .            . . 3333 .       . 2222 . .         . . . 4444
//     back, 2         1111 2222 . .         . . 3333 4444    1111 2222 . .      . . 3333 4444
//     back, 1         1111 2222 3333 4444   the same         the same           the same
//
// Rank 2's 2222 is (200 + 2000) + (2 + 20): the sums of the tree, with the sides of an addition
// exchanged, which changes no bit.
//
// THE REST. p is the largest power of two up to n. Each of the other n - p ranks sends each part to
// its owner, which reduces what they sent and adds it to its sum over the p: the root of the tree.
// Afterwards rank j - p sends everything to rank j. Three ranks, p = 2: rank 0 has 11 22 and rank 1
// has 33 44; rank 2 sends 100 200 to rank 0 and 300 400 to rank 1; in the end rank 0 sends all four
// sums to rank 2.
//
//   t = (1 + 2 log2 p) a  +  2 (p-1)/p S b  +  (p-1)/p S g     and for n > p:  + 2 a + S (2 b + g)
//
// The single `a` is the greeting, since the first partner is not always the next rank. Sent per
// rank: 2 (p-1)/p S; by a rank of the rest S; by one that serves it S more.

#include <bit>

#include "lockstep/dist/collectives/plan/algorithms.h"

namespace lockstep::dist {
namespace {

// What rank r < p still reduces after `levels` steps. After all of them: what it owns.
Range kept(const PlanInput& input, int r, int levels) {
  Range range{0, input.count};
  for (int level = 0; level < levels; ++level) {
    const std::int64_t middle = range.begin + range.size() / 2;
    (r >> level & 1 ? range.begin : range.end) = middle;
  }
  return range;
}

// With the partner at distance 2^level: gives away the half that the partner keeps and adds the
// partner's to its own.
Step halve(const PlanInput& input, int level) {
  const int partner = input.rank ^ (1 << level);
  return {.to = partner,
          .send = kept(input, partner, level + 1),
          .from = partner,
          .receive = kept(input, input.rank, level + 1),
          .into = Step::Into::sum,
          .header = true};
}

// The way back: both get what the other one has.
Step join(const PlanInput& input, int level) {
  Step step = halve(input, level);
  std::swap(step.send, step.receive);
  step.into = Step::Into::buffer;
  step.header = false;
  return step;
}

}  // namespace

void halving_all_reduce(const PlanInput& input, Plan& plan) {
  const int levels = std::bit_width(static_cast<unsigned>(input.world)) - 1;
  const int p = 1 << levels, rest = input.world - p;
  const Range all{0, input.count};
  greet(input, plan);
  if (input.rank >= p) {
    for (int owner = 0; owner < p; ++owner)
      plan.push_back({.to = owner, .send = kept(input, owner, levels), .header = true});
    plan.push_back({.from = input.rank - p, .receive = all, .header = true});
    return;
  }
  const Range own = kept(input, input.rank, levels);
  for (int level = 0; level < levels; ++level) plan.push_back(halve(input, level));
  for (int k = 0; k < rest; ++k)
    plan.push_back(
        {.from = p + k, .receive = own, .into = Step::Into::slot, .slot = k, .header = true});
  if (rest > 0)
    plan.push_back({.action = Step::Action::add_slots, .reduced = own, .sources = rest});
  for (int level = levels; level-- > 0;) plan.push_back(join(input, level));
  if (input.rank < rest) plan.push_back({.to = p + input.rank, .send = all, .header = true});
}

}  // namespace lockstep::dist
