#include "lockstep/kernels/backend/backend.h"

#include "lockstep/core/system/progress.h"
#include "lockstep/core/trace/recorder.h"

namespace lockstep::kernels {

Backend& backend_of(Device device) {
  Progress::note();
  if (trace::here.recorder) trace::here.recorder->kernel_begins();
  return device.kind == Device::Kind::cpu ? cpu_backend() : gpu_backend();
}

}  // namespace lockstep::kernels
