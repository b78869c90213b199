#pragma once
/// Distributed data parallelism (DDP): replicas that start equal and step on the same gradient.
///
///   dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
///
/// Construction is collective:
/// 1. It compares the models: names, shapes, dtypes, what requires a gradient, order, options. If
///    two ranks differ, every rank throws a StateError that names the first difference.
/// 2. It broadcasts rank 0's parameters and buffers.
/// 3. It gives the gradients their memory in buckets, and observes them (reducer.h).
///
/// From then on, every backward that reaches the parameters leaves the weighted mean over the ranks
/// in their gradients: sum_r(w_r g_r) / sum_r(w_r), see Tape::backward. The model is called as
/// before. A managed parameter cannot be moved. A parameter that was made or replaced later is
/// refused, by name: by backward if the loss also reaches managed ones, else by an optimizer that
/// also has managed ones. (A parameter that neither DDP nor the optimizer knows cannot be checked.)
///
/// Gradient accumulation: backwards that do not synchronize, and at last a backward that does.
///
///   for (int i = 0; i < 4; ++i) {
///     Tape tape;
///     tape.backward(loss(micro_batch[i]), Weight{rows(i)}, {.sync = i == 3});
///   }
///   optimizer.step();
///
/// Ranks whose data ends at different times:
///
///   for (const Batch& batch : mine) step(batch.x, batch.y, Weight{batch.rows});
///   while (ddp.join()) step(no_rows, no_labels, Weight{0});
///
/// Ownership: it does not keep the World or Communicator it was made with. Once that has ended, its
/// functions, backward and steps on its parameters throw StateError; to destroy it is allowed.
/// Thread-safety: one DistributedDataParallel belongs to one rank; one thread uses it at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/ddp/guards/buffer_sync.h"
#include "lockstep/dist/ddp/reducer.h"
#include "lockstep/dist/world/world.h"

namespace lockstep::dist {

/// Backwards only accumulate while it lives.
class [[nodiscard]] NoSync {
 public:
  /// What DistributedDataParallel::no_sync calls.
  explicit NoSync(std::shared_ptr<int> paused) : paused_(std::move(paused)) { ++*paused_; }
  ~NoSync() { --*paused_; }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<int> paused_;
};

class [[nodiscard]] DistributedDataParallel {
 public:
  /// Every parameter needs a name (Module::parameters() gives them theirs): names are how the ranks
  /// know that they mean the same parameter. Throws UsageError for one without, and as
  /// check_each_once.
  [[nodiscard]] DistributedDataParallel(std::vector<Parameter> parameters,
                                        std::vector<Buffer> buffers, const World& world,
                                        const DdpOptions& options = {});
  /// A world that ends at once cannot train.
  DistributedDataParallel(std::vector<Parameter>, std::vector<Buffer>, const World&&,
                          DdpOptions = {}) = delete;
  /// The same over any communicator.
  [[nodiscard]] DistributedDataParallel(std::vector<Parameter> parameters,
                                        std::vector<Buffer> buffers, Communicator& communicator,
                                        const DdpOptions& options = {});

  /// A scope in which backwards only accumulate, also with BackwardOptions::sync.
  NoSync no_sync() { return NoSync(reducer().paused()); }
  /// Collective, in the place of a synchronizing backward: closes this rank's window, or takes part
  /// with nothing. A rank whose loss reaches no parameter must call it, with that loss's weight.
  void synchronize(double weight = 0) { reducer().synchronize(weight); }

  /// As the optimizer's, for all parameters: also parameters that are in no optimizer.
  void zero_grad() { reducer().zero_grad(); }

  /// For a rank that has no more data. True while others may have some: this rank then takes one
  /// more step with them, on no rows (or with synchronize()), and asks again. It also takes the
  /// optimizer's step, so that the replicas stay equal. When no rank has data left, it is false on
  /// all ranks.
  bool join();

  /// Collective. Makes the replicas equal after steps on local gradients (`step(optim::local)`):
  /// parameters, floating buffers and what optimizers keep (momentum) := their means over the
  /// ranks.
  void average_parameters();

  /// Collective. Compares all parameters, and what optimizers keep of them, bit by bit. Throws
  /// StateError on all ranks if something differs: the error names the first tensor and index, and
  /// what each rank has there. Every step compares fingerprints of the same; call this before what
  /// must not go wrong, such as replacing a checkpoint. Also throws if a parameter is infinite or
  /// NaN, with NonFinite::report.
  void check_replicas() { reducer().check_replicas(); }

  /// Collective. check_replicas(), then rank 0 runs `save`, as by on_rank0: what that refuses does
  /// not replace a good one. If it throws, or `save` does, every rank throws. The others wait for
  /// rank 0 as on_rank0 says, then throw CommError, which names it.
  ///
  ///   ddp.save_on_rank0([&] { nn::save_safetensors("model.safetensors", model.state_dict()); });
  void save_on_rank0(const std::function<void()>& save, std::optional<Seconds> timeout = {});

  /// Whether a backward can be part of a recorded step (core/gpu/graph.h): the communicator reaches
  /// the GPUs, there is no communication hook, NonFinite does not look in gradients, there are no
  /// buffers that would have to be made equal, and no layer's statistics are synchronized over this
  /// communicator or its World's layer_communicator() (nn::SyncBatchNorm). Backwards then need a
  /// known total weight.
  bool recordable() const {
    return reducer().why_not_recorded().empty() && !buffers_->makes_equal() &&
           *communicator().membership().layers == 0;
  }

  /// With DdpOptions::deferred: reads now what the ranks told each other in the last backward, and
  /// throws the errors of that backward: then it is collective. The destructor does it, too. What
  /// that finds, run_threads throws; a rank that is a process ends as by an uncaught error. If the
  /// World has ended before, or an exception is on its way, nothing is read.
  void settle() { reducer().settle(); }

  /// What the last synchronization came to; its verdict is the same on every rank. It settles. A
  /// replay of a recorded step leaves it as it is.
  const StepReport& last_step() const { return settled().last_step(); }
  /// Who computes how long, and who waits, since construction. It settles.
  const StepStatistics& statistics() const { return settled().statistics(); }

  /// What it was made with.
  Communicator& communicator() const { return communicator_.get("[DistributedDataParallel]"); }

  /// Store it in the checkpoint (nn::Checkpoint does): a resumed run then has the same buckets from
  /// its first step.
  std::string bucket_layout() const { return to_text(buckets().layout()); }

  /// How the gradients are laid out now.
  const GradientBuckets& buckets() const { return reducer().buckets(); }

  /// For what refers to this object, and may outlive it.
  Lifetime::Ref lifetime() const { return lifetime_.ref(); }

 private:
  Reducer& reducer() const {
    check<StateError>(reducer_ != nullptr,
                      "[DistributedDataParallel] this one was moved from: use the other one");
    (void)communicator();
    return *reducer_;
  }
  Reducer& settled() const {
    reducer().settle();
    return *reducer_;
  }

  CommunicatorRef communicator_;
  std::shared_ptr<const void> needs_;
  Lifetime lifetime_;
  std::unique_ptr<BufferSync> buffers_, averaged_buffers_;
  std::unique_ptr<Reducer> reducer_;
  bool joined_ = false;
};

}  // namespace lockstep::dist
