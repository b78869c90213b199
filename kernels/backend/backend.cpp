#include "lockstep/kernels/backend/backend.h"

namespace lockstep::kernels {

Backend& backend_of(Device device) {
  return device.kind == Device::Kind::cpu ? cpu_backend() : gpu_backend();
}

}  // namespace lockstep::kernels
