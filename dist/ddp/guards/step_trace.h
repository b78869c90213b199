#pragma once
/// Notes in the thread's trace (core/trace/recorder.h) where a synchronization is.

#include <utility>

#include "lockstep/core/enum_name.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/ddp/guards/step_guard.h"

namespace lockstep::dist {

class StepTrace final : public StepGuard {
 public:
  explicit StepTrace(const std::vector<Parameter>& parameters) : parameters_(parameters) {}

  void ready(std::size_t parameter, const GradientBuckets::Bucket& bucket) override {
    trace::ready(parameters_[parameter].name(), bucket.index, bucket.pending);
  }
  void launches(const GradientBuckets::Bucket& bucket) override {
    trace::launched(bucket.name, bucket.index, bucket.memory.bytes());
  }
  /// The verdict of this backward is read later: what is noted then is a stop alone.
  void defer_verdict() { deferred_ = true; }
  void ended(StepVerdict verdict, int) override {
    const bool deferred = std::exchange(deferred_, false);
    trace::verdict(deferred ? "deferred" : name_in({"commit", "skip", "stop"}, verdict));
  }

 private:
  const std::vector<Parameter>& parameters_;
  bool deferred_ = false;
};

}  // namespace lockstep::dist
