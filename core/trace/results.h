#pragma once
/// What a thread computes: the results of operations, gradients and parameters, shown to a watcher
/// in the order in which they come to be. The layers show them; dist::HashTrace
/// (dist/observe/hash_trace.h) is the watcher.
///
/// While there is none, a place that could show something costs one read of a thread-local pointer.
///
/// Thread-safety: a watcher belongs to one thread.

#include <cstdint>
#include <string_view>

#include "lockstep/core/enum_name.h"
#include "lockstep/core/lanes.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/trace/observers.h"

namespace lockstep::trace {

enum class Place : std::uint8_t {
  input,      ///< an operand that nothing has computed: a batch
  forward,    ///< the output of an operation that a tape records
  backward,   ///< the gradient of that output, before the operation's own backward
  gradient,   ///< of a parameter: this rank's own when it is ready; and what the optimizer takes
  parameter,  ///< that an operation uses; and, with no operation, after the step
  buffer,     ///< after a synchronization
};
constexpr std::string_view name_of(Place place) {
  return name_in({"input", "forward", "backward", "gradient", "parameter", "buffer"}, place);
}

struct Result {
  Place place;
  std::string_view operation;    ///< that made it; empty for none
  std::string_view name;         ///< of a parameter; else of a parameter that the operation uses
  const Tensor& value;           ///< on any device
  bool of_world = false;         ///< all ranks have it, with the same bits
  const Lanes* lanes = nullptr;  ///< the first dimension counts samples, of these lanes
  const void* node = nullptr;    ///< the same for an output and its gradient
};

class ResultWatcher {
 public:
  virtual ~ResultWatcher() = default;
  virtual void see(const Result& result) = 0;
  virtual void step_ends() = 0;  ///< an optimizer's step, with all that it has to show

  std::string_view layer;  ///< the path of the module that computes
};

/// The module at `path` computes as long as this object lives, which is no longer than the watcher.
class LayerScope {
 public:
  explicit LayerScope(std::string_view path) : watcher_(here.watcher) {
    if (!watcher_) return;
    outer_ = watcher_->layer;
    watcher_->layer = path;
  }
  ~LayerScope() {
    if (watcher_) watcher_->layer = outer_;
  }
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  ResultWatcher* watcher_;
  std::string_view outer_;
};

}  // namespace lockstep::trace
