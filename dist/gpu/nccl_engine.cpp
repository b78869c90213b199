// Collectives by NCCL, one GPU per rank.
//
// As `nccl`, all-reduces are NCCL's own. As `nccl-direct`, NCCL only carries the bytes: each part
// goes to its owner, which reduces all contributions in tree order (kernels/tree_reduce.h), and
// back. These are grouped sends and receives with as many bytes as a ring, and the bits of
// two-shot. 16-bit elements always travel this way: they are then summed in f32 and rounded once.
// reduce_scatter and all_gather work the same way, because their parts need not be of equal size.
//
// NCCL's communicator is non-blocking: no call of it can hang where no timeout reaches. Memory of
// allocate() is NCCL's (ncclMemAlloc) and registered with the communicator.

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "lockstep/core/cuda/check.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/dist/gpu/peer_memory.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {
namespace {

/// Kernels that this thread has launched may still use memory that it releases: ncclMemFree unmaps
/// it at once, where cudaFree would wait. (A collective under way keeps its memory.)
void wait_for_kernels(Device device, Seconds patience) noexcept {
  try {
    const Event end(device);
    end.record(Stream::current(device));
    const auto latest = std::chrono::steady_clock::now() + patience;
    while (!end.done() && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  } catch (const Error&) {
    // The device is lost: nothing runs there any more.
  }
}

// What NCCL is to do, unless the user has said something else (setenv does not overwrite). Once.
bool choose_settings() {
  // Sums inside an NVSwitch need not have the same bits each time (NCCL's maintainers in
  // github.com/NVIDIA/nccl, issue 1497); here the same run gives the same bits.
  (void)::setenv("NCCL_ALGO", "^NVLS,NVLSTree", 0);
  // Communicators that share a GPU (a world, its groups) use it in the order of the host's calls.
  (void)::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  return true;
}

/// Of elements that NCCL adds; what it only moves are bytes to it.
ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    default: fail<DTypeError>("[nccl] it does not add {}", dtype);
  }
}

class NcclEngine final : public DeviceEngine {
 public:
  NcclEngine(EngineKind kind, Device device, HostCommunicator& host);
  ~NcclEngine() override;

  std::string_view algorithm() const override { return name_of(kind_); }
  Storage allocate(std::size_t bytes) override;
  void enqueue(const CollectiveCall& collective, const Stream& stream) override;
  std::string failure() override;
  void abort(const Stream& stream) noexcept override;

 private:
  void call(std::string_view function, ncclResult_t result, std::optional<Seconds> limit = {});
  void all_reduce(const Tensor& data, cudaStream_t stream);
  void reduce_parts(const Tensor& buffer, std::byte* target, cudaStream_t stream);
  void share_parts(const Tensor& buffer, cudaStream_t stream);
  /// Sends to_peer(r) to every rank r and receives from_peer(r) from it, all at the same time.
  using PeerBytes = std::function<std::span<std::byte>(int peer)>;
  void exchange(const PeerBytes& to_peer, const PeerBytes& from_peer, cudaStream_t stream);

  HostCommunicator& host_;
  EngineKind kind_;
  Device device_;
  int rank_, size_;
  /// Null once it has ended. Shared with the memory of allocate(), which may live longer.
  std::shared_ptr<ncclComm_t> shared_ = std::make_shared<ncclComm_t>(nullptr);
  ncclComm_t& comm_ = *shared_;
  std::vector<Tensor> slots_;  // parts from the peers: the last is used, recorded steps use others
};

// Rank 0 draws the id; the host's communicator brings it to all.
NcclEngine::NcclEngine(EngineKind kind, Device device, HostCommunicator& host)
    : host_(host), kind_(kind), device_(device), rank_(host.rank()), size_(host.size()) {
  cuda::call("nccl", "cudaSetDevice", cudaSetDevice(device.index));
  [[maybe_unused]] static const bool chosen = choose_settings();
  ncclUniqueId id{};
  if (rank_ == 0) call("ncclGetUniqueId", ncclGetUniqueId(&id));
  const std::string text =
      gather_text(host, rank_ == 0 ? std::string(id.internal, sizeof id) : "")[0];
  std::memcpy(&id, text.data(), sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t begun = ncclCommInitRankConfig(&comm_, size_, id, rank_, &config);
  try {
    call("ncclCommInitRankConfig", begun);
  } catch (const CommError&) {
    abort(Stream::current(device_));
    throw;
  }
}

NcclEngine::~NcclEngine() {
  slots_.clear();
  if (!comm_) return;
  // Every stream has been waited for. What NCCL still does for peers ends soon. But finalize may
  // also wait for ranks that end later, or never: then abort.
  try {
    call("ncclCommFinalize", ncclCommFinalize(comm_), std::min(host_.timeout(), Seconds(1)));
    (void)ncclCommDestroy(std::exchange(comm_, nullptr));
  } catch (const CommError&) {
    abort(Stream::current(device_));
  }
}

// NCCL ends its kernels at once. But then it waits until no recorded step with a call of this
// communicator is left (commDestroySync in NCCL's src/init.cc), and those may belong to this very
// thread, which is to go on and say what has failed. So another thread waits for that. This one
// waits for what stands behind those kernels in the stream: it uses memory that is released next.
void NcclEngine::abort(const Stream& stream) noexcept {
  if (const ncclComm_t comm = std::exchange(comm_, nullptr)) try {
      std::thread([comm] { (void)ncclCommAbort(comm); }).detach();
    } catch (const std::system_error&) {
      (void)ncclCommAbort(comm);  // no thread can be made
    }
  const auto end = std::chrono::steady_clock::now() + Seconds(5);
  while (cuda::query(static_cast<cudaStream_t>(stream.native())) == cudaErrorNotReady &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
}

// Waits while NCCL says "in progress", until the limit. Meanwhile the host's transport notices
// ranks that give up or are killed.
void NcclEngine::call(std::string_view function, ncclResult_t result,
                      std::optional<Seconds> limit) {
  const Seconds patience = limit.value_or(host_.timeout());
  const auto end = std::chrono::steady_clock::now() + patience;
  for (unsigned round = 0; result == ncclInProgress; host_.transport().relax(round++)) {
    if (std::chrono::steady_clock::now() > end)
      fail<CommError>("[nccl] rank {}: {} has not ended after {:g} s", rank_, function,
                      patience.count());
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess)
      result = asked;
  }
  if (result == ncclSuccess) return;
  const char* const detail = ncclGetLastError(comm_);
  fail<CommError>("[nccl] rank {}: {}: {} ({})", rank_, function, ncclGetErrorString(result),
                  detail && *detail ? detail : "no details");
}

std::string NcclEngine::failure() {
  ncclResult_t state = ncclSuccess;
  if (!comm_) return fmt::format("[nccl] rank {}: aborted", rank_);
  if (ncclCommGetAsyncError(comm_, &state) == ncclSuccess &&
      (state == ncclSuccess || state == ncclInProgress))
    return "";
  return fmt::format("[nccl] rank {}: {}", rank_, ncclGetErrorString(state));
}

Storage NcclEngine::allocate(std::size_t bytes) {
  cuda::call("nccl", "cudaSetDevice", cudaSetDevice(device_.index));
  void* data = nullptr;
  call("ncclMemAlloc", ncclMemAlloc(&data, bytes));
  zero_memory(data, bytes, device_);
  void* registration = nullptr;
  call("ncclCommRegister", ncclCommRegister(comm_, data, bytes, &registration));
  const auto release = [data, registration, comm = shared_, device = device_,
                        patience = host_.timeout()] {
    wait_for_kernels(device, patience);
    if (*comm) (void)ncclCommDeregister(*comm, registration);
    (void)ncclMemFree(data);
  };
  return Storage::adopt(data, bytes, release, device_);
}

void NcclEngine::enqueue(const CollectiveCall& collective, const Stream& on) {
  check<CommError>(comm_ != nullptr, "[nccl] rank {}: aborted", rank_);
  const auto stream = static_cast<cudaStream_t>(on.native());
  const Tensor& buffer = collective.buffer;
  if (buffer.numel() == 0) return;
  switch (collective.operation) {
    case Operation::all_reduce: return all_reduce(buffer, stream);
    case Operation::reduce_scatter: return reduce_parts(buffer, collective.part.raw(), stream);
    case Operation::all_gather:
      cuda::call("nccl", "cudaMemcpyAsync",
                 cudaMemcpyAsync(part_of(buffer, size_, rank_).data(), collective.part.raw(),
                                 collective.part.bytes(), cudaMemcpyDefault, stream));
      return share_parts(buffer, stream);
    case Operation::broadcast:
      return call("ncclBroadcast", ncclBroadcast(buffer.raw(), buffer.raw(), buffer.bytes(),
                                                 ncclUint8, collective.root, comm_, stream));
    case Operation::barrier: return;
  }
}

void NcclEngine::all_reduce(const Tensor& data, cudaStream_t stream) {
  if (kind_ == EngineKind::nccl && !adds_16_bit(Operation::all_reduce, data.dtype()))
    return call("ncclAllReduce",
                ncclAllReduce(data.raw(), data.raw(), static_cast<std::size_t>(data.numel()),
                              type_of(data.dtype()), ncclSum, comm_, stream));
  reduce_parts(data, part_of(data, size_, rank_).data(), stream);
  share_parts(data, stream);
}

void NcclEngine::exchange(const PeerBytes& to_peer, const PeerBytes& from_peer,
                          cudaStream_t stream) {
  call("ncclGroupStart", ncclGroupStart());
  ncclResult_t failed = ncclSuccess;  // a group that has begun is ended, whatever happens in it
  for (int r = 0; r < size_ && failed == ncclSuccess; ++r) {
    if (r == rank_) continue;
    if (const std::span<std::byte> out = to_peer(r); !out.empty())
      failed = ncclSend(out.data(), out.size(), ncclUint8, r, comm_, stream);
    if (const std::span<std::byte> in = from_peer(r); !in.empty() && failed == ncclSuccess)
      failed = ncclRecv(in.data(), in.size(), ncclUint8, r, comm_, stream);
  }
  const ncclResult_t ended = ncclGroupEnd();
  call("ncclSend or ncclRecv", failed);
  call("ncclGroupEnd", ended);
}

// target := the tree sum of this rank's part of every rank's buffer
void NcclEngine::reduce_parts(const Tensor& buffer, std::byte* target, cudaStream_t stream) {
  const std::span<std::byte> own = part_of(buffer, size_, rank_);
  const std::int64_t needed = static_cast<std::int64_t>(own.size()) * (size_ - 1);
  if (slots_.empty() || slots_.back().numel() < needed) {
    check_not_recording(static_cast<std::size_t>(needed));
    slots_.push_back(Tensor::empty({needed}, DType::u8, device_));
  }
  const auto slot = [&](int peer) {
    const std::size_t number = index(peer < rank_ ? peer : peer - 1);
    return std::span(slots_.back().raw() + number * own.size(), own.size());
  };
  exchange([&](int peer) { return part_of(buffer, size_, peer); }, slot, stream);
  std::vector<const std::byte*> sources;
  for (int r = 0; r < size_; ++r) sources.push_back(r == rank_ ? own.data() : slot(r).data());
  const std::int64_t elements = partition(buffer.numel(), size_, rank_).size();
  kernels::tree_reduce(buffer.dtype(), sources, std::span(&target, 1), elements, device_);
}

// Every rank's part to all others.
void NcclEngine::share_parts(const Tensor& buffer, cudaStream_t stream) {
  exchange([&](int) { return part_of(buffer, size_, rank_); },
           [&](int peer) { return part_of(buffer, size_, peer); }, stream);
}

}  // namespace

bool nccl_available() { return true; }

std::unique_ptr<DeviceEngine> nccl_engine(EngineKind kind, Device device, HostCommunicator& host) {
  return std::make_unique<NcclEngine>(kind, device, host);
}

}  // namespace lockstep::dist
