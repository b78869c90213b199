#pragma once
/// Whose complaints a wait looks for. A kernel complains where its stream keeps faults
/// (core/cuda/stream.h), and the host may read the result on another stream, which has waited for
/// an event of the first. So a stream knows whose work it has waited for, and an event passes it
/// on.

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/cuda/handle.h"
#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/cuda/stream.h"

namespace lockstep::cuda {

inline cudaError_t keep_faults(Faults* faults) { return keep_pinned(faults); }

/// Those of one stream. They outlive it while somebody has to look at them.
struct FaultSource {
  Handle<Faults*, keep_faults> faults;  ///< kernels write, the host reads
  std::atomic<bool> ended = false;      ///< the stream is gone: nothing is written any more

  bool complains() const { return faults.get()->bad_label != 0 || faults.get()->bad_index != 0; }
};

/// Those of a stream and of all whose work it waits for, each once. Thread-safe.
class FaultSources {
 public:
  void add(std::shared_ptr<FaultSource> source);
  void add(const FaultSources& others);
  /// Throws the first complaint, which is then forgotten.
  void check();

 private:
  void keep(std::shared_ptr<FaultSource> source);

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<FaultSource>> all_;
};

/// Complaints that nobody had read when their stream ended, with its thread or its Stream: the next
/// wait of any thread throws them.
FaultSources& left_behind();

}  // namespace lockstep::cuda
