#pragma once
/// The order in which gradients became ready in the first backward. After it the buckets are laid
/// out once more, in that order. From then on the layout stays.

#include <cstddef>
#include <vector>

#include "lockstep/dist/ddp/guards/step_guard.h"

namespace lockstep::dist {

class ReadyOrder final : public StepGuard {
 public:
  /// With fewer than 2 parameters there is nothing to order.
  explicit ReadyOrder(std::size_t parameters) : parameters_(parameters), done_(parameters < 2) {
    ready_.reserve(parameters);
  }

  bool done() const { return done_; }
  void begins(bool) override { ready_.clear(); }
  void ready(std::size_t parameter, const GradientBuckets::Bucket&) override {
    if (!done_) ready_.push_back(static_cast<int>(parameter));
  }
  /// Collective: all ranks take the order that rank `source` has seen, completed by the parameters
  /// that its loss did not reach.
  std::vector<int> agree(Communicator& communicator, int source);

 private:
  std::size_t parameters_;
  bool done_;
  std::vector<int> ready_;
};

}  // namespace lockstep::dist
