#pragma once
/// Looks for numbers that are infinite or NaN: in gradients, before and after their sum, and in
/// parameters.

#include <cstdint>
#include <string>

#include "lockstep/dist/ddp/agreed_error.h"
#include "lockstep/dist/ddp/guards/replica_check.h"
#include "lockstep/dist/ddp/guards/step_guard.h"

namespace lockstep::dist {

/// Whether the policy looks through the gradients.
inline bool looks_in_gradients(NonFinite policy) {
  return policy == NonFinite::skip || policy == NonFinite::stop;
}

class NonFiniteCheck final : public StepGuard {
 public:
  /// `steps` has seen whether a step has left such a number in a parameter. All must outlive this.
  NonFiniteCheck(NonFinite policy, const std::vector<Parameter>& parameters,
                 const ReplicaCheck& steps, Communicator& communicator)
      : policy_(policy), parameters_(parameters), steps_(steps), communicator_(communicator) {}

  // What the reducer tells it. On a GPU the host waits where it looks.
  void begins(bool recorded) override;
  void launches(const GradientBuckets::Bucket& bucket) override;
  void write(StepMetadata& metadata) override;

  /// If the policy asks: changes a verdict to commit into skip, or stop with the problem, if a sum
  /// of gradients that are finite on each rank is not. It has the same bits on all ranks, so all
  /// come to the same verdict.
  void look_in_sums(const GradientBuckets& buckets, StepOutcome& outcome);
  /// Throws StateError on all ranks if a parameter holds such a number. Collective: all have taken
  /// the same steps. `known`: only where a step has seen one.
  void check_parameters(std::string_view operation, bool known);
  /// The same at the end, on this rank alone: others may have ended.
  void check_at_end(std::string_view operation);
  /// Why all ranks stop: what the rank `rank` has told in `metadata`.
  Problem describe(const StepMetadata& metadata, int rank) const;

 private:
  /// The first element of a gradient, or of a parameter, that is infinite or NaN.
  struct Found {
    int parameter = -1;  // index in registration order; -1: all are finite
    std::int64_t element = -1;
  };
  void look_in_gradients(const GradientBuckets::Bucket& bucket);
  void look_in_parameters();
  std::string describe_parameter(int parameter, std::int64_t element) const;

  NonFinite policy_;
  const std::vector<Parameter>& parameters_;
  const ReplicaCheck& steps_;
  Communicator& communicator_;
  Found found_;
};

}  // namespace lockstep::dist
