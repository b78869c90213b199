#pragma once
/// The backend of GPUs and of the simulator. Defined family by family in the files of this folder.
/// Everything is enqueued on the current stream of the tensors' device (core/gpu/stream.h).

#include "lockstep/kernels/backend/backend.h"

namespace lockstep::kernels {

class CudaBackend final : public Backend {
 public:
#define LOCKSTEP_BACKEND override
#include "lockstep/kernels/backend/functions.h"
#undef LOCKSTEP_BACKEND
};

}  // namespace lockstep::kernels
