#include "lockstep/kernels/backend/backend.h"

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/system/progress.h"
#include "lockstep/core/trace/recorder.h"

namespace lockstep::kernels {

Backend& backend_of(Device device) {
  Progress::note();
  if (trace::here.recorder) trace::here.recorder->kernel_begins();
  if (device.kind != Device::Kind::cpu) return gpu_backend();
  check<NotRecordable>(!StepGraph::noting() || !StepGraph::recording(),
                       "[step graph] a step that is recorded computes on the cpu, which no replay "
                       "does: move its tensors to the GPU, or compute outside of the step");
  return cpu_backend();
}

}  // namespace lockstep::kernels
