#include "lockstep/dist/cuda/peer_memory.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "lockstep/core/cuda/check.h"
#include "lockstep/dist/agreement.h"
#include "lockstep/dist/cuda/zero.h"

namespace lockstep::dist {
namespace {

using cuda::call;

/// What a rank tells the others of its memory.
struct Card {
  std::uint64_t process = 0;  // a number that only threads of one process share
  std::uint64_t bytes = 0;
  std::int32_t device = 0;
  std::int32_t padding = 0;
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
  ~Mapping() {  // errors cannot be helped here; a sticky one shows at the next call
    (void)cudaSetDevice(device);
    for (void* memory : mapped) (void)cudaIpcCloseMemHandle(memory);
  }
};

std::uint64_t this_process() {
  static const std::uint64_t number = [] {
    std::uint64_t drawn = 0;
    check<CommError>(::getrandom(&drawn, sizeof drawn, 0) == sizeof drawn,
                     "[ipc] no random bytes to tell processes apart");
    return drawn;
  }();
  return number ^ static_cast<std::uint64_t>(::getpid());  // a child that was forked is another
}

std::shared_ptr<void> allocate_zeroed(std::size_t bytes, Device device) {
  void* data = nullptr;
  call("ipc", "cudaMalloc", cudaMalloc(&data, bytes));
  std::shared_ptr<void> memory(data, [index = device.index](void* m) {
    (void)cudaSetDevice(index);
    (void)cudaFree(m);
  });
  zero_memory(data, bytes);
  return memory;
}

void allow_access(int own, int peer) {
  if (own == peer) return;
  int possible = 0;
  call("ipc", "cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&possible, own, peer));
  check<UsageError>(possible, "[ipc] GPU {} cannot address the memory of GPU {}", own, peer);
  const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return;
  }
  call("ipc", "cudaDeviceEnablePeerAccess", error);
}

/// What `step` failed with; empty if it went well.
std::string failure_of(const std::function<void()>& step) {
  try {
    step();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::byte* address(const Card& card, Mapping& mapping) {
  if (card.process == this_process()) {
    allow_access(mapping.device, card.device);
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

PeerMemory share_device_memory(std::size_t bytes, Device device, HostCommunicator& host) {
  const auto mapping = std::make_shared<Mapping>(device.index);
  std::shared_ptr<void> own;
  Card mine;
  std::string failure = failure_of([&] {
    call("ipc", "cudaSetDevice", cudaSetDevice(device.index));
    own = allocate_zeroed(bytes, device);
    mapping->owned.push_back(own);
    mine.data = static_cast<std::byte*>(own.get());
    if (host.size() > 1)
      call("ipc", "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&mine.handle, own.get()));
  });
  mine.process = this_process();
  mine.bytes = bytes;
  mine.device = device.index;
  mine.owner = &own;

  PeerMemory memory{bytes, {}, mapping};
  const std::string text(reinterpret_cast<const char*>(&mine), sizeof mine);
  const std::vector<std::string> cards = gather_text(host, text);
  for (int r = 0; r < host.size(); ++r) {
    Card card;
    std::memcpy(&card, cards[index(r)].data(), sizeof card);
    check<CommError>(card.bytes == bytes, "[allocate] rank {} asks for {} bytes, rank {} for {}", r,
                     card.bytes, host.rank(), bytes);
    const auto map = [&] {
      memory.base.push_back(r == host.rank() ? mine.data : address(card, *mapping));
    };
    if (failure.empty() && card.data) failure = failure_of(map);
  }
  // All ranks have it, or none. And nobody may free memory before it is mapped everywhere.
  const std::vector<std::string> failures = gather_text(host, failure);
  for (int r = 0; r < host.size(); ++r)
    check<DeviceError>(failures[index(r)].empty(), "[ipc] rank {}: {}", r, failures[index(r)]);
  return memory;
}

}  // namespace lockstep::dist
