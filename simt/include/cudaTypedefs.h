#pragma once
/// Types of the driver's functions: <cuda.h>.

#include "cuda.h"

using PFN_cuTensorMapEncodeTiled_v12000 = CUresult (*)(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
    const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
using PFN_cuModuleGetLoadingMode_v11070 = CUresult (*)(CUmoduleLoadingMode* mode);
using PFN_cuStreamWriteValue32_v11070 = CUresult (*)(CUstream stream, CUdeviceptr address,
                                                     cuuint32_t value, unsigned flags);
using PFN_cuStreamWriteValue64_v11070 = CUresult (*)(CUstream stream, CUdeviceptr address,
                                                     cuuint64_t value, unsigned flags);
using PFN_cuStreamWaitValue32_v11070 = PFN_cuStreamWriteValue32_v11070;
using PFN_cuStreamWaitValue64_v11070 = PFN_cuStreamWriteValue64_v11070;
using PFN_cuStreamBatchMemOp_v11070 = CUresult (*)(CUstream stream, unsigned count,
                                                   CUstreamBatchMemOpParams* operations,
                                                   unsigned flags);
