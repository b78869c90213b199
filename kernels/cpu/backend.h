#pragma once
/// The backend of the processor. Defined family by family in the files of this folder.

#include "lockstep/kernels/backend/backend.h"

namespace lockstep::kernels {

class CpuBackend final : public Backend {
 public:
#define LOCKSTEP_BACKEND override
#include "lockstep/kernels/backend/functions.h"
#undef LOCKSTEP_BACKEND
};

}  // namespace lockstep::kernels
