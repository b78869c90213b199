#pragma once
/// Which part of the parameters each rank steps: ZeRO, stage 1 (Rajbhandari et al., "ZeRO: memory
/// optimizations toward training trillion parameter models", SC 2020). What Optimizer::shard makes.
///
/// The values lie one after another in one memory, which is cut into as many equal parts as there
/// are ranks. A rank keeps the optimizer's state of its part alone, and steps it alone. Then all
/// ranks get all parts, in place:
///
///     values       | 0.weight           | 0.bias | 2.weight        | 2.bias |
///     parts        | rank 0         | rank 1         | rank 2            |
///     step         | ############## |                |                   |   on rank 0
///     all-gather   | <------------- | -------------> | ----------------> |
///
///   state per rank: S / n of S bytes        sent per rank and step: (n-1) / n of the values
///
/// Gradients are all-reduced as always: what reads or changes them (clipping, a communication hook,
/// a GradScaler, an accumulation window) sees what it saw. An element is stepped as before, so its
/// bits are those of the plain optimizer.
///
/// What one rank alone does to a value is overwritten by the value's owner in the next step. What
/// it alone does to a gradient (clips by another norm) reaches all ranks alike: so that it does not
/// pass unseen, the ranks compare one parameter's gradient per step, in turn.

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::optim {

/// Where tensors of these sizes lie in one memory, each aligned to 64 bytes, and how many elements
/// that has: equal and aligned parts for `ranks` ranks.
struct FlatPlan {
  std::vector<std::int64_t> begins;
  std::int64_t numel = 0;
};
FlatPlan flat_plan(const std::vector<std::int64_t>& sizes, int ranks);

class Sharding {
 public:
  /// Collective: moves the values into memory that the ranks reach. Throws StateError if the
  /// elements of a value are held elsewhere too, where later steps would not be seen. Once
  /// `communicator` has ended, the collective functions throw StateError.
  Sharding(const std::vector<Parameter>& parameters, dist::Communicator& communicator);
  /// Gives the values their own memory.
  ~Sharding();
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  /// The elements of `of`, a tensor of the parameter's shape, that this rank steps: a view of shape
  /// (n,), perhaps with n = 0.
  Tensor own(const Parameter& parameter, const Tensor& of) const;
  /// Throws StateError if the communicator has ended.
  dist::Communicator& communicator(std::string_view operation) const;
  /// Collective: all ranks' values become those that their rank has stepped.
  void gather();
  /// Collective: all ranks' parts of what is kept of the parameter; `part` is own(). On the cpu.
  Tensor whole(const Parameter& parameter, const Tensor& part) const;

 private:
  struct Flat {
    Tensor memory, wire;  // of the values; where the ranks reach it
  };
  struct Place {
    std::size_t flat;
    std::int64_t begin;
  };
  dist::Range owned(const Parameter& parameter, int rank) const;
  std::vector<Parameter> parameters_;
  dist::CommunicatorRef communicator_;
  int rank_, ranks_;
  std::vector<Flat> flats_;  // per dtype and device
  std::unordered_map<const void*, Place> places_;
};

}  // namespace lockstep::optim
