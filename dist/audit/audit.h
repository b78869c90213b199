#pragma once
/// Audits: ranks compute each other's work once more and compare it bit by bit. With lanes
/// (core/lanes.h) any rank can compute any lane, and gets the same bits: if not, a processor or a
/// memory is wrong, or a program draws numbers or keeps state that Lockstep does not know.
///
///   dist::Audit audit(ddp, {.every = 100});
///   for (const data::Batch& batch : loader) {
///     const Tensor loss = audit.backward(loader, batch, [&](const data::Batch& b) {
///       return nn::cross_entropy(model(b.x), b.y);
///     });
///     optimizer.step();
///     optimizer.zero_grad();
///   }
///
/// backward() is `Tape tape; Tensor loss = ...; tape.backward(loss, batch.weight);`. In every 100th
/// step each rank then computes one lane of the next rank again, forward and backward. It takes
/// another lane each time: all k lanes of a rank in k audits. Ranks exchange 64 bits for each
/// parameter. They compare what the owner has put into its sum: each lane's part of each gradient
/// and, where BatchNorm sums over samples, of these sums.
///
/// If something differs, all ranks compute that lane once more. What more than half of them say is
/// right: then the owner or the auditor was wrong. All ranks throw an AuditError that names the
/// wrong rank, the step, the lane, the parameter, and the first element that differs. No rank has
/// taken the step. Under survive() (dist/world/survive.h) the wrong rank is lost, and the others
/// repeat the step.
///
///   ranks      what is known of a fault
///   3 or more  who is wrong
///   2          the same, if it does not come again; otherwise it is one of the two: an AuditError
///              that blames no rank, and also ends a job that survives
///   1          the rank audits itself: only a fault that does not come again is seen
///
/// Not audited: how a rank adds up its lanes, the sum over the ranks, and the optimizer's step. If
/// that step gives different bits on two ranks, the fingerprints of the replicas show it
/// (dist/ddp/guards/replica_check.h). An audited step multiplies each lane alone, where others make
/// a product and its sum over lanes at once: the same bits, by other instructions.
///
/// The second run leaves gradients, buffers, random generators, observers and reducers as they are,
/// as checkpoint() does (autograd/checkpoint.h). If your own forward counts something, let it not
/// count while recomputing() is true.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/autograd/lanes/lane_record.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/dist/ddp/ddp.h"

namespace lockstep::dist {

/// A rank has computed something wrongly. The error blames that rank.
struct AuditError : CommError {
  using CommError::CommError;
};

/// The same on all ranks.
struct AuditOptions {
  std::int64_t every = 100;  ///< steps from one audit to the next; 0: none
  std::int64_t taken = 0;    ///< steps before the first backward(): of a run that goes on
};

class Audit {
 public:
  /// Throws UsageError for negative numbers.
  explicit Audit(DistributedDataParallel& ddp, const AuditOptions& options = {});

  /// loss(batch) and its backward, on a new tape. Collective. `loss` must give the same for the
  /// same samples whenever it is called, on every rank. The result is detached.
  ///
  /// In an audited step, throws AuditError; StateError if a gradient is there already (a step has
  /// one backward), a tape lives outside, or the ddp or its World has ended.
  template <class Loader, class Batch, class Loss>
  Tensor backward(const Loader& loader, const Batch& batch, const Loss& loss) {
    if (!begin_step()) {
      Tape tape;
      const Tensor result = loss(batch);
      tape.backward(result, batch.weight);
      return result.detach();
    }
    const auto part = [&loss](const Batch& of) {
      return Part{of.lanes, of.weight, [&loss, of] { return loss(of); }};
    };
    return audited({batch.lanes, batch.weight, [&] { return loss(batch); }},
                   [&](int lane) { return part(loader.lane(batch.step, lane)); });
  }

  std::int64_t steps() const { return step_; }     ///< taken or begun, of all
  std::int64_t audits() const { return audits_; }  ///< that this one has made

 private:
  /// Some lanes of a batch.
  struct Part {
    std::shared_ptr<const Lanes> lanes;
    Weight weight;
    std::function<Tensor()> loss;
  };
  struct Step;
  struct Dispute;

  bool begin_step() {
    ++step_;
    return every_ > 0 && step_ % every_ == 0;
  }
  Tensor audited(const Part& mine, const std::function<Part(int lane)>& lane);
  int audited_lane(const Step& step, int owner) const;
  LaneRecord again(const Step& step, int lane) const;
  [[noreturn]] void settle(const Step& step, const Dispute& dispute) const;
  int rank() const { return communicator_.rank(); }
  int ranks() const { return communicator_.size(); }

  std::vector<Parameter> parameters_;
  CommunicatorRef world_;
  Communicator& communicator_;
  std::int64_t every_, step_;
  std::int64_t audits_ = 0;
};

}  // namespace lockstep::dist
