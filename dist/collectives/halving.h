#pragma once
/// The steps of recursive halving and doubling (plan.h draws it), for ranks within the largest power
/// of two p of a world and for the rest beyond it.

#include <bit>

#include "lockstep/dist/collectives/plan.h"

namespace lockstep::dist::halving {

/// p, and the number of ranks beyond.
inline int power(int world) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(world)));
}
inline int rest(int world) { return world - power(world); }

/// What rank r < p still reduces after `levels` steps: of each half that it cut, the lower one if
/// the bit of that level in its number is 0. After all of them: what it owns.
Range kept(const Plan& plan, int r, int levels);

/// With the partner at distance 2^level: gives away the half that the partner keeps and adds the
/// partner's to its own, or (not `reduce`) brings both together again.
Step exchange(const Plan& plan, int level, bool reduce);

/// Between the rest and the p: step s of handing parts to their owners, and the way back.
Step rest_in(const Plan& plan, int s);
Step rest_out(const Plan& plan);

}  // namespace lockstep::dist::halving
