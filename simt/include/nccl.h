#pragma once
/// NCCL, as far as this project uses it: the functions, types and values of nccl.h 2.28. Ranks are
/// processes of this machine, or threads of one. The meaning is NCCL's; what is simpler here stands
/// in docs/simulator.md.

#include <climits>
#include <cstddef>

#include "cuda_runtime.h"

constexpr int NCCL_MAJOR = 2, NCCL_MINOR = 28, NCCL_PATCH = 9;
constexpr int NCCL_VERSION_CODE = NCCL_MAJOR * 10000 + NCCL_MINOR * 100 + NCCL_PATCH;

using ncclComm_t = struct ncclComm*;

constexpr int NCCL_UNIQUE_ID_BYTES = 128;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclRedOp_t : int { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };

enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
};

constexpr int NCCL_CONFIG_UNDEF_INT = INT_MIN;
constexpr int NCCL_SPLIT_NOCOLOR = -1;

/// Only `blocking` means something here: 0 or 1 (the default).
struct ncclConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize, minCTAs, maxCTAs;
  const char* netName;
  int splitShare, trafficClass;
  const char* commName;
  int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
};
constexpr ncclConfig_t NCCL_CONFIG_INITIALIZER{sizeof(ncclConfig_t),
                                               0xcafebeef,
                                               NCCL_VERSION_CODE,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               nullptr,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               nullptr,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT,
                                               NCCL_CONFIG_UNDEF_INT};

extern "C" {

// ---- communicators ------------------------------------------------------------------------------

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
/// Of this process, whatever the communicator.
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);

ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);

// ---- memory -------------------------------------------------------------------------------------

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes);
ncclResult_t ncclMemFree(void* data);
ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, std::size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);

// ---- operations ---------------------------------------------------------------------------------

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t received_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t sent_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
}
