#pragma once
/// Keeps a model's buffers (running statistics) equal on all ranks: once per synchronization, after
/// backward. Not within a forward, because that would change what an earlier forward has saved.

#include <memory>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/ddp/guards/step_guard.h"

namespace lockstep::dist {

enum class BufferMode : std::uint8_t {
  broadcast,  ///< of the first rank that had data in the step: normally of rank 0, whose buffers
              ///< are old if it had no data
  average,    ///< floating buffers := their mean over all ranks; others are broadcast
  off,        ///< every rank keeps its own
};

class BufferSync final : public StepGuard {
 public:
  using Buffers = std::shared_ptr<const std::vector<Buffer>>;
  /// The buffers share the model's memory: a module must write into them, not replace them.
  /// `communicator` must outlive this.
  BufferSync(Buffers buffers, Communicator& communicator, BufferMode mode);

  /// Whether there is something to do, beyond one rank.
  bool makes_equal() const {
    return mode_ != BufferMode::off && communicator_.size() > 1 && !buffers_->empty();
  }
  bool needs_source() const override { return makes_equal(); }
  /// Throws StateError if it would have to, in a recorded step: buffers travel through the host.
  void begins(bool recorded) override;

  /// Collective: one message per dtype that is averaged, and one for all that is broadcast. Throws
  /// StateError for a buffer that no other handle holds any more.
  void synchronize(int source);

  /// Keeps a copy of all buffers, and brings it back. A step that is skipped has been through
  /// forward, perhaps with a NaN.
  void keep();
  void restore();

  /// Equal after a step that is taken, and restored after a skipped step, if they are kept.
  void ended(StepVerdict verdict, int source) override;

 private:
  void make_equal(int source);

  Buffers buffers_;
  Communicator& communicator_;
  BufferMode mode_;
  Tensor packed_;                 // u8: the broadcast ones, one after another
  std::vector<Tensor> averaged_;  // a flat one per dtype
  std::vector<Tensor> kept_;      // by buffer
};

/// Each tensor := root's, whatever its dtype and device. Collective: few messages for many small
/// tensors, which travel together; all ranks give tensors of the same sizes.
void broadcast(Communicator& communicator, const std::vector<Buffer>& tensors, int root);

}  // namespace lockstep::dist
