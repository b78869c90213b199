#include "lockstep/kernels/cpu/backend.h"

namespace lockstep::kernels {

Backend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace lockstep::kernels
