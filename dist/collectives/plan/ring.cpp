// RING. Every rank talks to its two neighbours only: rank r sends to r + 1 and receives from r - 1,
// modulo n. Parts travel n - 1 hops in the first phase, and n - 1 in the second:
//
//     +-> 0 --> 1 --> 2 --+   reduce-scatter: in its step s rank r sends part r - s - 1 and adds
//     |                   |   what arrives to part r - s - 2; at the end part r is complete there
//     +-------------------+   all-gather: in its step s rank r sends part r - s, which is complete,
//                             and stores part r - s - 1
//
// Three ranks hold the parts 1 2 3, 10 20 30 and 100 200 300:
//
//     phase           s   0 sends  1 sends  2 sends   rank 0        rank 1        rank 2
//     reduce-scatter  0      3        10      200     1 202 3       10 20 33      110 200 300
//                     1    202        33      110     111 202 3     10 222 33     110 200 333
//     all-gather      0    111       222      333     111 202 333   111 222 33    110 222 333
//                     1    333       111      222     111 222 333   111 222 333   111 222 333
//
// One all-reduce of S bytes takes t seconds, with a seconds per message, b per byte sent and g per
// byte added (algorithms.h); each rank sends 2 (n-1)/n S bytes, and no all-reduce can send less
// (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009):
//   t = 2 (n-1) a  +  2 (n-1)/n S b  +  (n-1)/n S g
// The sum of a part begins at the rank after its owner. In which part an element lies depends on
// its place in the bucket, and so do the bits of its sum.

#include "lockstep/dist/collectives/plan/algorithms.h"

namespace lockstep::dist {
namespace {

// Sends the part `back` places behind this rank's and receives the one before that.
Step pass_on(const PlanInput& input, int back, Step::Into into, bool header) {
  const int n = input.world;
  const auto behind = [&](int places) { return (input.rank - places + n) % n; };
  return {.to = (input.rank + 1) % n,
          .send = input.part(behind(back)),
          .from = behind(1),
          .receive = input.part(behind(back + 1)),
          .into = into,
          .header = header};
}

}  // namespace

void ring_reduce_scatter(const PlanInput& input, Plan& plan) {
  for (int s = 0; s < input.world - 1; ++s)
    plan.push_back(pass_on(input, s + 1, Step::Into::sum, s == 0));
}

void ring_all_gather(const PlanInput& input, bool header, Plan& plan) {
  for (int s = 0; s < input.world - 1; ++s)
    plan.push_back(pass_on(input, s, Step::Into::buffer, header && s == 0));
}

}  // namespace lockstep::dist
