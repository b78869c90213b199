/// How the driver's functions are found.

#include <cudaTypedefs.h>

#include <cstdlib>
#include <cstring>

#include "lockstep/simt/runtime/call.h"

using namespace simt::detail;

namespace {

struct EntryPoint {
  const char* name;
  unsigned since;  ///< the version of CUDA whose function of this name this is
  void* function;
};

const EntryPoint entry_points[] = {
    {"cuTensorMapEncodeTiled", 12000, reinterpret_cast<void*>(cuTensorMapEncodeTiled)},
    {"cuModuleGetLoadingMode", 11070, reinterpret_cast<void*>(cuModuleGetLoadingMode)},
    {"cuStreamWriteValue32", 11070, reinterpret_cast<void*>(cuStreamWriteValue32)},
    {"cuStreamWriteValue64", 11070, reinterpret_cast<void*>(cuStreamWriteValue64)},
    {"cuStreamWaitValue32", 11070, reinterpret_cast<void*>(cuStreamWaitValue32)},
    {"cuStreamWaitValue64", 11070, reinterpret_cast<void*>(cuStreamWaitValue64)},
    {"cuStreamBatchMemOp", 11070, reinterpret_cast<void*>(cuStreamBatchMemOp)},
};

}  // namespace

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  return static_cast<CUresult>(call_runtime<Context::not_needed>([mode](Runtime& runtime) {
    *mode = runtime.config.lazy_loading ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
  }));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result) {
  return call_runtime<Context::not_needed>([&](Runtime&) {
    require(symbol != nullptr && function != nullptr && flags == cudaEnableDefault,
            cudaErrorInvalidValue);
    auto found = cudaDriverEntryPointSymbolNotFound;
    *function = nullptr;
    for (const EntryPoint& one : entry_points) {
      if (std::strcmp(symbol, one.name) != 0) continue;
      found = version < one.since ? cudaDriverEntryPointVersionNotSufficent
                                  : cudaDriverEntryPointSuccess;
      if (found == cudaDriverEntryPointSuccess) *function = one.function;
    }
    if (result) *result = found;
  });
}
