#pragma once
/// What this project uses of CUDA's driver API: tensor maps, which describe a matrix in global
/// memory to the copy engine of Hopper GPUs, and operations of a stream that write a value in
/// memory or wait for one. Names and values are CUDA's. The functions are found through
/// cudaGetDriverEntryPointByVersion, as types of <cudaTypedefs.h>.

#include <cstdint>

using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum CUtensorMapDataType : int {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 11,
};
enum CUtensorMapInterleave : int { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle : int {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_128B = 3,
};
enum CUtensorMapL2promotion : int {
  CU_TENSOR_MAP_L2_PROMOTION_NONE = 0,
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3,
};
enum CUtensorMapFloatOOBfill : int { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

struct alignas(64) CUtensorMap {
  cuuint64_t opaque[16];
};

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* data, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

// ---- loading of kernels -------------------------------------------------------------------------

enum CUmoduleLoadingMode : int { CU_MODULE_EAGER_LOADING = 1, CU_MODULE_LAZY_LOADING = 2 };

/// Eager if CUDA_MODULE_LOADING said EAGER when CUDA was first used, or simt::configure said so.
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode);

// ---- stream memory operations -------------------------------------------------------------------

using CUstream = struct CUstream_st*;  ///< the runtime API's cudaStream_t
using CUdeviceptr = unsigned long long;

enum CUstreamWaitValue_flags : int {
  CU_STREAM_WAIT_VALUE_GEQ = 0,  ///< until value at address - value >= 0, as signed integers
  CU_STREAM_WAIT_VALUE_EQ = 1,
  CU_STREAM_WAIT_VALUE_AND = 2,          ///< until (value at address & value) != 0
  CU_STREAM_WAIT_VALUE_NOR = 3,          ///< until ~(value at address | value) != 0
  CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30,  ///< then flush the writes of others that have arrived
};
enum CUstreamWriteValue_flags : int { CU_STREAM_WRITE_VALUE_DEFAULT = 0 };

enum CUstreamBatchMemOpType : int {
  CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
  CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
  CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4,
  CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5,
};

union CUstreamBatchMemOpParams {
  CUstreamBatchMemOpType operation;
  struct {
    CUstreamBatchMemOpType operation;
    CUdeviceptr address;
    union {
      cuuint32_t value;
      cuuint64_t value64;
    };
    unsigned flags;
    CUdeviceptr alias;
  } waitValue;
  struct {
    CUstreamBatchMemOpType operation;
    CUdeviceptr address;
    union {
      cuuint32_t value;
      cuuint64_t value64;
    };
    unsigned flags;
    CUdeviceptr alias;
  } writeValue;
  cuuint64_t pad[6];
};

/// What cudaGraphNodeGetType says of a captured one.
enum CUgraphNodeType : int { CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12 };

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned flags);
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags);
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags);
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                             unsigned flags);
CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                            unsigned flags);
