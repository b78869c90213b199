#include "lockstep/dist/gpu/flags.h"

#include <cudaTypedefs.h>

#include <thread>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/handle.h"

namespace lockstep::dist {
namespace {

using cuda::call;

// A function of the driver, without linking with it: a program must start where there is none.
PFN_cuStreamBatchMemOp_v11070 batch_mem_op() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    call("ipc", "cudaGetDriverEntryPointByVersion",
         cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &found, 11070, cudaEnableDefault,
                                          &result));
    check<DeviceError>(result == cudaDriverEntryPointSuccess,
                       "[ipc] the driver has no cuStreamBatchMemOp");
    return reinterpret_cast<PFN_cuStreamBatchMemOp_v11070>(found);
  }();
  return function;
}

constexpr std::size_t most_operations = 256;  // of one call

CUstreamBatchMemOpParams write_of(CUdeviceptr address, cuuint32_t value) {
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = address;
  write.writeValue.value = value;
  write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return write;
}

}  // namespace

Flags::Flags(int purposes, Device device, HostCommunicator& host)
    : rank_(host.rank()),
      size_(host.size()),
      purposes_(purposes),
      memory_(share_device_memory(index(size_ * purposes) * sizeof(std::uint32_t), device, host)) {}

CUdeviceptr Flags::flag(int at, int of, int purpose) const {
  const auto number = static_cast<std::size_t>(of * purposes_ + purpose);
  return reinterpret_cast<CUdeviceptr>(memory_.base[index(at)] + number * sizeof(std::uint32_t));
}

void Flags::signal(int peer, int purpose) {
  row_.push_back(write_of(flag(peer, rank_, purpose), 1));
}

void Flags::await(int peer, int purpose) {
  CUstreamBatchMemOpParams wait{};
  wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  wait.waitValue.address = flag(rank_, peer, purpose);
  wait.waitValue.value = 1;
  wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  row_.push_back(wait);
  row_.push_back(write_of(wait.waitValue.address, 0));
}

void Flags::run(cudaStream_t stream) {
  for (std::size_t begin = 0; begin < row_.size(); begin += most_operations) {
    const std::size_t count = std::min(most_operations, row_.size() - begin);
    const CUresult result =
        batch_mem_op()(stream, static_cast<unsigned>(count), row_.data() + begin, 0);
    if (result == CUDA_SUCCESS) continue;
    row_.clear();
    fail<DeviceError>("[ipc] cuStreamBatchMemOp failed with error {}", static_cast<int>(result));
  }
  row_.clear();
}

void Flags::meet(int purpose, cudaStream_t stream) {
  for (int distance = 1; distance < size_; ++distance) signal((rank_ + distance) % size_, purpose);
  for (int distance = 1; distance < size_; ++distance)
    await((rank_ - distance + size_) % size_, purpose);
  run(stream);
}

void Flags::release(cudaStream_t stream, Seconds patience) noexcept {
  const auto end = std::chrono::steady_clock::now() + patience;
  cudaStream_t other{};
  if (cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) != cudaSuccess) return;
  const cuda::Handle<cudaStream_t, cudaStreamDestroy> keeper(other);
  const std::vector<std::uint32_t> ones(index(size_ * purposes_), 1);
  while (cudaStreamQuery(stream) == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
    (void)cudaMemcpyAsync(memory_.base[index(rank_)], ones.data(), ones.size() * sizeof ones[0],
                          cudaMemcpyDefault, other);
    (void)cudaStreamSynchronize(other);
    std::this_thread::yield();
  }
}

}  // namespace lockstep::dist
