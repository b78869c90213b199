#include "lockstep/dist/ddp/deterministic.h"

#include <algorithm>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/lanes.h"
#include "lockstep/dist/collectives/choice.h"

namespace lockstep::dist {

void check_level(Deterministic asked, const Contribution& contribution,
                 const GradientBuckets& buckets, const CommunicationHook* hook,
                 Communicator& communicator) {
  const Deterministic level =
      contribution.lanes > 0 ? std::max(asked, Deterministic::world) : asked;
  if (level == Deterministic::run) return;
  const auto refuse = [&](const std::string& why) {
    fail<StateError>("[backward] bits of level '{}' ({}): {}", name_of(level),
                     contribution.lanes > 0 ? "the batch has lanes" : "DdpOptions::deterministic",
                     why);
  };
  if (hook) refuse("a communication hook rounds what this rank has added up: none may be there");
  communicator.add_in_tree_order();
  for (const GradientBuckets::Bucket& bucket : buckets.all()) {
    const std::string_view how = communicator.algorithm(bucket.wire.bytes(), bucket.wire.dtype());
    if (communicator.size() > 1 && !adds_in_tree_order(how))
      refuse(fmt::format("the ranks add up in a balanced tree, and {} does not: take --comm direct",
                         how));
  }
  if (level >= Deterministic::world && contribution.lanes == 0)
    refuse("the batch has no lanes, LoaderOptions::lanes");
  if (level < Deterministic::machine) return;
  for (const Parameter& parameter : buckets.parameters())
    if (const Tensor& value = parameter.value();
        value.device() != Device{} || value.dtype() != DType::f32)
      refuse(fmt::format("{} is {} on {}, and only f32 on the cpu gives it", parameter,
                         value.dtype(), value.device()));
  if (Autocast::current() != DType::f32) refuse("Autocast multiplies 16-bit numbers");
}

void check_level_of_local_steps(Deterministic asked) {
  check<StateError>(!current_lanes(),
                    "[average_parameters] the batch has lanes, for the same bits on any number of "
                    "ranks: what ranks have trained apart depends on how many they are");
  check<StateError>(asked < Deterministic::world,
                    "[average_parameters] bits of level '{}' (DdpOptions::deterministic): what "
                    "ranks have trained apart depends on how many they are",
                    name_of(asked));
}

}  // namespace lockstep::dist
