#include "lockstep/kernels/cuda/cublas.h"

#include <cublas_v2.h>

#include <list>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "lockstep/core/cuda/check.h"

namespace lockstep::kernels::cuda {
namespace {

void call(std::string_view function, cublasStatus_t status) {
  check<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "[matmul] {}: {}", function,
                     cublasGetStatusString(status));
}

/// A handle and its workspace, which a captured graph keeps using: so neither ever moves. Products
/// that may run at the same time must not share a workspace, so it belongs to a stream; and threads
/// must not share a handle.
struct Library {
  int device;
  cudaStream_t stream;
  bool taken;  // by a thread
  cublasHandle_t handle = nullptr;
  void* workspace = nullptr;
};

/// Libraries are never destroyed: that would wait for all work of the device (cuBLAS Library,
/// cublasDestroy), and so for a stream that waits for a rank of this process. They are used again.
class Pool {
 public:
  Library& take(int device, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    for (Library& library : libraries_)
      if (library.device == device && library.stream == stream &&
          !std::exchange(library.taken, true))
        return library;
    return libraries_.emplace_back(Library{device, stream, true});
  }
  void keep(Library& library) {
    const std::lock_guard lock(mutex_);
    library.taken = false;
  }

 private:
  std::mutex mutex_;
  std::list<Library> libraries_;
};

Pool& pool() {
  static auto* const all = new Pool;
  return *all;
}

/// Of one thread, by device and stream.
struct TakenLibraries {
  std::map<std::pair<int, cudaStream_t>, Library*> all;
  ~TakenLibraries() {
    for (const auto& [key, library] : all) pool().keep(*library);
  }
};

cublasHandle_t handle_for(cudaStream_t stream) {
  constexpr std::size_t workspace_bytes = std::size_t{32} << 20;  // what cuBLAS recommends for 9.0
  thread_local TakenLibraries taken;
  int device = 0;
  lockstep::cuda::call("matmul", "cudaGetDevice", cudaGetDevice(&device));
  Library*& library = taken.all[{device, stream}];
  if (!library) library = &pool().take(device, stream);
  if (!library->handle) call("cublasCreate", cublasCreate(&library->handle));
  if (!library->workspace)
    lockstep::cuda::call("matmul", "cudaMalloc", cudaMalloc(&library->workspace, workspace_bytes));
  // Setting the stream resets the workspace.
  call("cublasSetStream", cublasSetStream(library->handle, stream));
  call("cublasSetWorkspace",
       cublasSetWorkspace(library->handle, library->workspace, workspace_bytes));
  return library->handle;
}

template <class T>
constexpr cudaDataType_t type_of = CUDA_R_32F;
template <>
constexpr cudaDataType_t type_of<double> = CUDA_R_64F;
template <>
constexpr cudaDataType_t type_of<Half> = CUDA_R_16F;
template <>
constexpr cudaDataType_t type_of<BFloat16> = CUDA_R_16BF;

}  // namespace

bool cublas_available() { return true; }

// cuBLAS is column-major: it sees every row-major matrix transposed. c^T = op(b)^T op(a)^T, so the
// operands change places and the flags stay.
template <class T, class C>
void cublas_gemm(const GemmProblem<T, C>& p, cudaStream_t stream, bool tf32) {
  constexpr bool wide = std::is_same_v<T, double>;
  const cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F
                                      : tf32 && std::is_same_v<T, float>
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
  const std::conditional_t<wide, double, float> one = 1, beta = p.accumulate ? 1 : 0;
  const auto flag = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  call("cublasGemmEx_64",
       cublasGemmEx_64(handle_for(stream), flag(p.transpose_b), flag(p.transpose_a), p.n, p.m, p.k,
                       &one, p.b, type_of<T>, p.transpose_b ? p.k : p.n, p.a, type_of<T>,
                       p.transpose_a ? p.m : p.k, &beta, p.c, type_of<C>, p.n, compute,
                       CUBLAS_GEMM_DEFAULT));
}
template void cublas_gemm(const GemmProblem<float>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<double>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<Half>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<BFloat16>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<Half, float>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<BFloat16, float>&, cudaStream_t, bool);

}  // namespace lockstep::kernels::cuda
