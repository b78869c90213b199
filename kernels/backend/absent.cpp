// In place of cuda/, in builds without a GPU and without the simulator.
#include "lockstep/kernels/backend/backend.h"

namespace lockstep::kernels {

bool has_cublas() { return false; }

Backend& gpu_backend() { fail<DeviceError>("[backend] this build drives no GPU"); }

}  // namespace lockstep::kernels
