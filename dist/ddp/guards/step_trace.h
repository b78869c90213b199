#pragma once
/// Notes in the thread's trace (core/trace/recorder.h) where a synchronization is.

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
  void ended(StepVerdict verdict, int) override {
    trace::verdict(verdict == StepVerdict::commit ? "commit" : "skip");
  }

 private:
  const std::vector<Parameter>& parameters_;
};

}  // namespace lockstep::dist
