#pragma once
/// An optimizer that steps on a bucket as soon as it has been reduced, while later buckets travel.
///
///   optim::SGD optimizer(model.parameters(), {.lr = 0.1});
///   dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
///   optim::Overlap overlap(optimizer, ddp);
///
///     bucket 0           |--- all-reduce ---|step|
///     bucket 1                    |--- all-reduce ---|step|
///     backward kernels  ........................|         step(): whatever is left
///
/// The loop stays as it is, step() included, and so does every bit of the result. Steps begin after
/// the last kernel of backward, since until then backward may read any parameter.
///
/// A parameter is stepped early if this rank has used it in a backward whose total weight was known
/// when it began; step() steps the others: parameters that only other ranks have used, and all of
/// them at the end of a window.
///
/// A step that has begun cannot be taken back. So this does not go together with NonFinite::skip or
/// stop (UsageError), with clipping between backward and step (StateError), with options that
/// change between backward and step (StateError), with a second backward before the step
/// (StateError), with Optimizer::shard (UsageError), or with ranks without data, which change the
/// divisor in the end (StateError).

#include <span>

#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// While it lives, the optimizer steps early. On all ranks or on none. If the optimizer ends before
/// it, the next backward throws StateError.
class [[nodiscard]] Overlap final : dist::EarlyStepper {
 public:
  /// From now on until its end.
  Overlap(Optimizer& optimizer, dist::DistributedDataParallel& ddp)
      : optimizer_(optimizer), life_(optimizer.life()) {
    check<UsageError>(!optimizer.sharded(),
                      "[overlap] a sharded optimizer cannot step during backward");
    ddp.communicator().membership().refuse_if_ranks_may_be_lost(
        "optim::Overlap", "a step that has begun during backward cannot be taken back");
    ddp.overlap(self_);
  }
  Overlap(const Overlap&) = delete;
  Overlap& operator=(const Overlap&) = delete;

 private:
  void step_now(std::span<const Parameter> parameters) override {
    check<StateError>(!life_.expired(),
                      "[overlap] its optimizer has ended: end the Overlap before");
    optimizer_.step_early(parameters);
  }

  Optimizer& optimizer_;
  std::weak_ptr<const void> life_;  // of the optimizer
  // Keeps nothing alive.
  std::shared_ptr<dist::EarlyStepper> self_{static_cast<dist::EarlyStepper*>(this),
                                            [](dist::EarlyStepper*) {}};
};

}  // namespace lockstep::optim
