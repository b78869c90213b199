#include "lockstep/dist/gpu/peer_memory.h"

#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/handle.h"
#include "lockstep/dist/collectives/object_collectives.h"

namespace lockstep::dist {
namespace {

using cuda::call;

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

std::shared_ptr<void> allocate_zeroed(std::size_t bytes, Device device) {
  call("ipc", "cudaSetDevice", cudaSetDevice(device.index));
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

void zero_memory(void* data, std::size_t bytes) {
  cudaStream_t made{};
  call("allocate", "cudaStreamCreateWithFlags",
       cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  const cuda::Handle<cudaStream_t, cudaStreamDestroy> stream(made);
  call("allocate", "cudaMemsetAsync", cudaMemsetAsync(data, 0, bytes, made));
  call("allocate", "cudaStreamSynchronize", cudaStreamSynchronize(made));
}

SharedRegion share_device_memory(std::size_t bytes, Device device, HostCommunicator& host) {
  std::shared_ptr<void> own;
  take_together<DeviceError>(host, [&] { own = allocate_zeroed(bytes, device); });
  Card mine{.process = this_process(),
            .bytes = bytes,
            .device = device.index,
            .data = static_cast<std::byte*>(own.get()),
            .owner = &own};
  take_together<ReachError>(host, [&] {
    if (host.size() > 1)
      call("ipc", "cudaIpcGetMemHandle", cudaIpcGetMemHandle(&mine.handle, own.get()));
  });

  const std::vector<Card> cards = gather_cards(mine, host);
  const auto mapping = std::make_shared<Mapping>(device.index);
  mapping->owned.push_back(own);
  SharedRegion memory{bytes, {}, mapping};
  try {  // together, also because nobody may free memory before it is mapped everywhere
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
