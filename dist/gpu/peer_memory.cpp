#include "lockstep/dist/gpu/peer_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "lockstep/core/cuda/stream_pool.h"
#include "lockstep/core/gpu/device_memory.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/gpu/driver.h"

namespace lockstep::dist {
namespace {

using cuda::call;

cudaStream_t handle_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

/// What a rank tells the others of its memory.
struct Card {
  std::uint64_t process = 0;  // a number that only threads of one process share
  std::uint64_t bytes = 0;
  std::int64_t device = 0;
  std::byte* data = nullptr;
  const std::shared_ptr<void>* owner = nullptr;  // of the data, for threads of the same process
  cudaIpcMemHandle_t handle{};
};

/// What a rank addresses: its own memory, that of threads beside it, and what is mapped by IPC.
struct Mapping {
  int device;
  std::vector<std::shared_ptr<void>> owned;
  std::vector<void*> mapped;

  explicit Mapping(int device_) : device(device_) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { unmap(); }
  void unmap() {  // errors cannot be helped here; a sticky one shows at the next call
    (void)cudaSetDevice(device);
    for (void* memory : mapped) (void)cudaIpcCloseMemHandle(memory);
    mapped.clear();
  }
};

std::uint64_t this_process() {
  static const std::uint64_t drawn = std::random_device{}();
  return drawn << 32 |
         static_cast<std::uint32_t>(::getpid());  // a child that was forked is another
}

/// A rank's own memory in a region.
struct OwnMemory {
  void* data;
  std::size_t bytes;
  int device;
  std::optional<Event> ended =
      {};  // what the computing stream of its last user was given till then
};

// CUDA leaves open what happens if memory is freed while another process has it mapped, and no
// process says when it unmaps. To free it may also wait for all streams of the GPU, one of which
// may wait for the very rank that frees. So what several ranks share is kept for the next region.
// The end of the process frees it.
class KeptMemory {
 public:
  /// The smallest that has enough bytes, but not twice as many.
  std::optional<OwnMemory> take(std::size_t bytes, int device) {
    const std::lock_guard lock(mutex_);
    if (process_ != this_process()) kept_.clear();  // of the process that forked this one
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it)
      if (it->device == device && it->bytes >= bytes && it->bytes / 2 < bytes &&
          (best == kept_.end() || it->bytes < best->bytes))
        best = it;
    if (best == kept_.end()) return {};
    const OwnMemory found = *best;
    kept_.erase(best);
    return found;
  }
  void keep(const OwnMemory& memory) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(process_, this_process()) != this_process()) kept_.clear();
    kept_.push_back(memory);
  }

 private:
  std::mutex mutex_;
  std::uint64_t process_ = 0;  // whose memory it is
  std::vector<OwnMemory> kept_;
};

KeptMemory& kept_memory() {
  static auto* const kept = new KeptMemory;  // also for regions that end after main()
  return *kept;
}

// Kernels that the computing stream was given may still use memory that ends.
void note_end(OwnMemory& memory, Device device) noexcept {
  try {
    memory.ended.emplace(device);
    memory.ended->record(Stream::current(device));
  } catch (const Error&) {  // the device has failed: nothing computes any more
    memory.ended.reset();
  }
}

std::shared_ptr<OwnMemory> allocate_shared(std::size_t bytes, Device device) {
  call("ipc", "cudaSetDevice", cudaSetDevice(device.index));
  std::optional<OwnMemory> own = kept_memory().take(bytes, device.index);
  if (!own) {
    own = {nullptr, bytes, device.index};
    call("ipc", "cudaMalloc", cudaMalloc(&own->data, bytes));
  }
  if (own->ended) Stream::reading(device).wait(*own->ended);
  Stream::reading(device).synchronize();
  zero_memory(own->data, bytes, device);
  return std::shared_ptr<OwnMemory>(new OwnMemory(*own), [device](OwnMemory* ended) {
    note_end(*ended, device);
    kept_memory().keep(*std::unique_ptr<OwnMemory>(ended));
  });
}

// Of a world of one: freed in the order of a stream that is empty, which waits for nothing.
std::shared_ptr<OwnMemory> allocate_alone(std::size_t bytes, Device device) {
  const Stream stream = Stream::reading(device);
  const StreamGuard guard(stream);
  void* const data = gpu::allocate(bytes, stream);
  gpu::fill_zero(data, bytes, device);
  stream.synchronize();
  return std::shared_ptr<OwnMemory>(new OwnMemory{data, bytes, device.index},
                                    [stream, device](OwnMemory* memory) {
                                      const std::unique_ptr<OwnMemory> ended(memory);
                                      note_end(*ended, device);
                                      if (ended->ended) stream.wait(*ended->ended);
                                      gpu::release(ended->data, stream);
                                    });
}

// A kernel that is loaded at its first launch may wait for all streams of its context; here these
// wait for other ranks, which may need the very thread that launches.
void check_loading() {
  CUmoduleLoadingMode mode{};
  static const auto loading_mode =
      driver_function<PFN_cuModuleGetLoadingMode_v11070>("cuModuleGetLoadingMode");
  check<DeviceError>(loading_mode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_EAGER_LOADING,
                     "ranks that are threads and share a GPU need CUDA_MODULE_LOADING=EAGER in the "
                     "environment, before CUDA is first used: set it, or start the ranks as "
                     "processes");
}

// Of two streams in one hardware queue, one may wait for a rank that needs the other.
void check_queues(int device) {
  const int streams = cuda::streams_in_use(device), queues = cuda::hardware_queues();
  check<DeviceError>(streams <= queues,
                     "ranks that are threads use {} streams of GPU {}, which has {} hardware "
                     "queues (CUDA_DEVICE_MAX_CONNECTIONS, at most 32): let fewer ranks share it, "
                     "or start the ranks as processes",
                     streams, device, queues);
}

void allow_access(int own, int peer) {
  if (own == peer) return;
  int possible = 0;
  call("ipc", "cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&possible, own, peer));
  check<UsageError>(possible, "[ipc] GPU {} cannot address the memory of GPU {}", own, peer);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError();
  else
    call("ipc", "cudaDeviceEnablePeerAccess", error);
}

/// Takes a step on every rank. If it fails on some, throws E on all and names the first of them.
template <class E>
void take_together(HostCommunicator& host, const std::function<void()>& step) {
  std::string failure;
  try {
    step();
  } catch (const Error& error) {
    failure = error.what();
  }
  const std::vector<std::string> failures = gather_text(host, failure);
  for (std::size_t r = 0; r < failures.size(); ++r)
    check<E>(failures[r].empty(), "[ipc] rank {}: {}", r, failures[r]);
}

std::vector<Card> gather_cards(const Card& mine, HostCommunicator& host) {
  const std::string text(reinterpret_cast<const char*>(&mine), sizeof mine);
  std::vector<Card> cards;
  for (const std::string& one : gather_text(host, text))
    std::memcpy(&cards.emplace_back(), one.data(), sizeof(Card));
  for (std::size_t r = 0; r < cards.size(); ++r)
    check<CommError>(cards[r].bytes == mine.bytes,
                     "[allocate] rank {} asks for {} bytes, rank {} for {}", r, cards[r].bytes,
                     host.rank(), mine.bytes);
  return cards;
}

std::byte* address(const Card& card, Mapping& mapping) {
  if (card.process == this_process()) {
    if (card.device == mapping.device) {
      check_loading();
      check_queues(mapping.device);
    }
    allow_access(mapping.device, static_cast<int>(card.device));
    mapping.owned.push_back(*card.owner);
    return card.data;
  }
  void* memory = nullptr;
  call("ipc", "cudaIpcOpenMemHandle",
       cudaIpcOpenMemHandle(&memory, card.handle, cudaIpcMemLazyEnablePeerAccess));
  mapping.mapped.push_back(memory);
  return static_cast<std::byte*>(memory);
}

}  // namespace

void zero_memory(void* data, std::size_t bytes, Device device) {
  const Stream stream = Stream::reading(device);
  call("allocate", "cudaMemsetAsync", cudaMemsetAsync(data, 0, bytes, handle_of(stream)));
  stream.synchronize();
}

void check_reach(const SharedRegion& region, Device device, HostCommunicator& host) {
  const int rank = host.rank(), size = host.size();
  if (size == 1) return;
  const Stream stream = Stream::reading(device);
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    call("ipc", "cudaMemcpyAsync",
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_of(stream)));
    stream.synchronize();
  };
  // Value r of each rank's region is rank r's to write.
  const auto value = [&](int at, int of) {
    return region.base[index(at)] + index(of) * sizeof(std::uint32_t);
  };
  const auto mark = [](int of) { return 0x5eed0000u + static_cast<std::uint32_t>(of); };
  take_together<ReachError>(host, [&] {
    const std::uint32_t mine = mark(rank);
    for (int r = 0; r < size; ++r) copy(value(r, rank), &mine, sizeof mine);
  });
  take_together<ReachError>(host, [&] {
    for (int r = 0; r < size; ++r) {
      std::uint32_t arrived = 0, read = 0;
      copy(&arrived, value(rank, r), sizeof arrived);
      copy(&read, value(r, r), sizeof read);
      check<ReachError>(arrived == mark(r) && read == mark(r),
                        "the memory of rank {}'s GPU can be mapped, but not {}: a PCIe switch "
                        "(ACS) or the IOMMU may forbid it; use NCCL",
                        r, read == mark(r) ? "written by that rank" : "read");
    }
  });
  zero_memory(region.base[index(rank)], index(size) * sizeof(std::uint32_t), device);
  host.barrier("flags are zero").wait();
}

SharedRegion share_device_memory(std::size_t bytes, Device device, HostCommunicator& host) {
  std::shared_ptr<OwnMemory> own;
  take_together<DeviceError>(host, [&] {
    own = host.size() > 1 ? allocate_shared(bytes, device) : allocate_alone(bytes, device);
  });
  const std::shared_ptr<void> owner = own;
  Card mine{.process = this_process(),
            .bytes = bytes,
            .device = device.index,
            .data = static_cast<std::byte*>(own->data),
            .owner = &owner};
  take_together<ReachError>(host, [&] {
    if (host.size() > 1)
      call("ipc", "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&mine.handle, own->data));
  });

  const std::vector<Card> cards = gather_cards(mine, host);
  const auto mapping = std::make_shared<Mapping>(device.index);
  mapping->owned.push_back(own);
  SharedRegion memory{bytes, {}, mapping};
  try {  // together, also because no rank may free memory before it is mapped everywhere
    take_together<ReachError>(host, [&] {
      for (int r = 0; r < host.size(); ++r)
        memory.base.push_back(r == host.rank() ? mine.data : address(cards[index(r)], *mapping));
    });
  } catch (const ReachError&) {
    mapping->unmap();
    host.barrier("peer memory given up").wait();  // nor while it is mapped
    throw;
  }
  return memory;
}

}  // namespace lockstep::dist
