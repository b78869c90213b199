#include "lockstep/dist/cuda/peer_memory.h"

#include <unistd.h>

#include <cstring>

#include "lockstep/core/cuda/check.h"
#include "lockstep/dist/agreement.h"

namespace lockstep::dist {
namespace {

using cuda::call;

/// What a rank tells the others of its memory.
struct Card {
  std::int64_t process = 0;
  std::uint64_t bytes = 0;
  std::int32_t device = 0;
  std::int32_t padding = 0;
  std::byte* data = nullptr;
  cudaIpcMemHandle_t handle{};
};

/// Own memory, and what of the peers' is mapped by IPC.
struct Mapping {
  int device;
  void* own = nullptr;
  std::vector<void*> mapped;

  explicit Mapping(int device_) : device(device_) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {  // errors cannot be helped here; a sticky one shows at the next call
    (void)cudaSetDevice(device);
    for (void* memory : mapped) (void)cudaIpcCloseMemHandle(memory);
    if (own) (void)cudaFree(own);
  }
};

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

std::byte* address(const Card& card, Mapping& mapping) {
  if (card.process == ::getpid()) {
    allow_access(mapping.device, card.device);
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
  call("ipc", "cudaSetDevice", cudaSetDevice(device.index));
  call("ipc", "cudaMalloc", cudaMalloc(&mapping->own, bytes));
  call("ipc", "cudaMemset", cudaMemset(mapping->own, 0, bytes));
  call("ipc", "cudaDeviceSynchronize", cudaDeviceSynchronize());

  Card mine;
  mine.process = ::getpid();
  mine.bytes = bytes;
  mine.device = device.index;
  mine.data = static_cast<std::byte*>(mapping->own);
  if (host.size() > 1)
    call("ipc", "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&mine.handle, mapping->own));

  PeerMemory memory{bytes, {}, mapping};
  const std::string text(reinterpret_cast<const char*>(&mine), sizeof mine);
  const std::vector<std::string> cards = gather_text(host, text);
  for (int r = 0; r < host.size(); ++r) {
    Card card;
    std::memcpy(&card, cards[index(r)].data(), sizeof card);
    check<CommError>(card.bytes == bytes, "[allocate] rank {} asks for {} bytes, rank {} for {}", r,
                     card.bytes, host.rank(), bytes);
    memory.base.push_back(r == host.rank() ? mine.data : address(card, *mapping));
  }
  host.barrier("peer memory").wait();  // mapped everywhere before anybody may free it
  return memory;
}

}  // namespace lockstep::dist
