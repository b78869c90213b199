#pragma once

#include "lockstep/autograd/gradient_reducer.h"

namespace lockstep::test {

/// A reducer of so many ranks that sums nothing.
struct FakeReducer : GradientReducer {
  explicit FakeReducer(int ranks) : ranks_(ranks) {}
  bool window = false;

  void gradient_ready(const Parameter&) override {}
  int ranks() const override { return ranks_; }
  std::int64_t order() const override { return 0; }
  bool in_window(bool) override { return window; }
  double window_weight() const override { return -1; }
  void step_begins(const Parameter&, bool) override {}
  kernels::Fingerprint fingerprint(const Parameter&, bool) override { return {}; }
  void stepped(const std::weak_ptr<Stepper>&, std::uint64_t, bool) override {}
  bool gave_up() const override { return false; }
  std::uint64_t synchronizations() const override { return 0; }

 private:
  int ranks_;
};

}  // namespace lockstep::test
