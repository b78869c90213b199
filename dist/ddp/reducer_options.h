#pragma once
/// The options of a reducer: second reading.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/ddp/buckets/bucket_layout.h"
#include "lockstep/dist/ddp/deterministic.h"
#include "lockstep/dist/ddp/hooks/communication_hook.h"
#include "lockstep/dist/ddp/nonfinite.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {

struct ReducerOptions {
  BucketCaps caps;
  bool rebuild_buckets = true;              ///< once, in the order of the first backward
  std::optional<BucketLayout> layout = {};  ///< of a checkpoint: then it is never changed
  NonFinite nonfinite = NonFinite::report;
  Deterministic deterministic = Deterministic::run;
  std::shared_ptr<CommunicationHook> hook = {};  ///< null: buckets are summed where they lie
  bool deferred = false;                         ///< see reducer_deferred.cpp
  bool check_replicas = true;                    ///< compare the replicas at every step
  std::vector<Parameter> frozen = {};            ///< compared with the others
  /// Called on every rank after each synchronization, with the first rank that had data.
  std::function<void(StepVerdict verdict, int source)> after_sync = {};
};

}  // namespace lockstep::dist
