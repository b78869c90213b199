#pragma once
/// Types of the driver's functions: <cuda.h>.

#include "cuda.h"

using PFN_cuTensorMapEncodeTiled_v12000 = CUresult (*)(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
    const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
    const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
