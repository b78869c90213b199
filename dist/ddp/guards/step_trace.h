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
  /// The verdict of this backward is read later, or never: what is noted then is a stop alone.
  void leave_out_verdict() { left_out_ = true; }
  void ended(StepVerdict verdict, int) override {
    if (std::exchange(left_out_, false)) return;
    trace::verdict(name_in({"commit", "skip", "stop"}, verdict));
  }

 private:
  const std::vector<Parameter>& parameters_;
  bool left_out_ = false;
};

}  // namespace lockstep::dist
