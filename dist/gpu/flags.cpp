#include "lockstep/dist/gpu/flags.h"

#include <thread>

#include "lockstep/core/cuda/stream_pool.h"
#include "lockstep/dist/gpu/driver.h"

namespace lockstep::dist {
namespace {

using cuda::call;

PFN_cuStreamBatchMemOp_v11070 batch_mem_op() {
  static const auto function = driver_function<PFN_cuStreamBatchMemOp_v11070>("cuStreamBatchMemOp");
  return function;
}

constexpr std::size_t most_operations = 255;  // of one call: "must be less than 256" (cuda.h)

CUstreamBatchMemOpParams write_of(CUdeviceptr address, cuuint32_t value) {
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = address;
  write.writeValue.value = value;
  write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return write;
}

// What a peer wrote before it set a flag must be seen by all work after the wait. Its writes may
// still be on their way within this GPU, which a wait can flush if the GPU can.
unsigned wait_flags(Device device) {
  int can_flush = 0;
  call("ipc", "cudaDeviceGetAttribute",
       cudaDeviceGetAttribute(&can_flush, cudaDevAttrCanFlushRemoteWrites, device.index));
  return CU_STREAM_WAIT_VALUE_EQ |
         (can_flush ? static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH) : 0u);
}

}  // namespace

Flags::Flags(int purposes, Device device, HostCommunicator& host)
    : rank_(host.rank()),
      size_(host.size()),
      purposes_(purposes),
      wait_flags_(wait_flags(device)),
      memory_(share_device_memory(index(size_ * purposes) * sizeof(std::uint32_t), device, host)) {
  check_reach(memory_, device, host);
}

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
  wait.waitValue.flags = wait_flags_;
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
  while (cuda::query(stream) == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
    try {
      const cuda::StreamHandle other = cuda::take_stream("ipc");
      row_.clear();
      for (int peer = 0; peer < size_; ++peer)
        for (int purpose = 0; purpose < purposes_; ++purpose)
          row_.push_back(write_of(flag(rank_, peer, purpose), 1));
      run(other.get());
      while (cuda::query(other.get()) == cudaErrorNotReady &&
             std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
    } catch (...) {
      return;  // the device is lost: nothing waits there any more
    }
    std::this_thread::yield();
  }
}

}  // namespace lockstep::dist
