#pragma once
/// Functions of CUDA's driver, without linking with it: a program must start where there is none.

#include <cudaTypedefs.h>

#include "lockstep/core/cuda/check.h"

namespace lockstep::dist {

/// The driver's function of this name; F is its PFN_..._v11070 type. Throws DeviceError if it has
/// none.
template <class F>
F driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cuda::call("ipc", "cudaGetDriverEntryPointByVersion",
             cudaGetDriverEntryPointByVersion(name, &found, 11070, cudaEnableDefault, &result));
  check<DeviceError>(result == cudaDriverEntryPointSuccess, "[ipc] the driver has no {}", name);
  return reinterpret_cast<F>(found);
}

}  // namespace lockstep::dist
