#include "lockstep/kernels/cuda/backend.h"

namespace lockstep::kernels {

Backend& gpu_backend() {
  static CudaBackend backend;
  return backend;
}

}  // namespace lockstep::kernels
