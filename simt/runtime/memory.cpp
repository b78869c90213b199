/// Device memory, pinned host memory, and the pool that is only malloc here.

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lockstep/simt/execution/poison.h"
#include "lockstep/simt/races/races.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

namespace simt::detail {
namespace {

/// All that there are, by their beginnings.
std::map<std::uintptr_t, const Allocation*>& living() {
  static auto& all = *new std::map<std::uintptr_t, const Allocation*>;
  return all;
}

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

}  // namespace

const Allocation* Allocation::holding(const void* data, std::size_t bytes) {
  const auto after = living().upper_bound(address_of(data));
  if (after == living().begin()) return nullptr;
  const Allocation* before = std::prev(after)->second;
  const std::size_t offset = address_of(data) - std::prev(after)->first;
  return offset < before->bytes && bytes <= before->bytes - offset ? before : nullptr;
}

// One malloc each, so that AddressSanitizer guards both ends; the end of pages is poisoned, for
// that. 256 bytes is what cudaMalloc promises (Programming Guide, "Size and Alignment
// Requirement").
Allocation::Allocation(Kind kind_, Source source_, int device_, std::size_t bytes_)
    : kind(kind_), source(source_), device(device_), bytes(bytes_) {
  const bool pages = source == Source::pages;
  const std::size_t size = pages ? SharedFile::whole_pages(bytes) : bytes;
  void* memory = nullptr;
  if (size < bytes || posix_memalign(&memory, pages ? SharedFile::page : 256, size) != 0)
    throw std::bad_alloc();
  data = static_cast<std::byte*>(memory);
  poison(data + bytes, size - bytes);
  living()[address_of(data)] = this;
}

Allocation::Allocation(void* registered, int device_, std::size_t bytes_)
    : kind(Kind::registered),
      source(Source::user),
      device(device_),
      bytes(bytes_),
      data(static_cast<std::byte*>(registered)) {
  living()[address_of(data)] = this;
}

Allocation::Allocation(SharedFile opened, int device_, std::size_t bytes_)
    : kind(Kind::device),
      source(Source::opened),
      device(device_),
      bytes(bytes_),
      data(opened.map(bytes)),
      shared(std::move(opened)) {
  shared->hold();
  poison(data + bytes, SharedFile::whole_pages(bytes) - bytes);
  living()[address_of(data)] = this;
}

void Allocation::lose_what_is_written() const {
  ::mmap(data, SharedFile::whole_pages(bytes), PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

Allocation::~Allocation() {
  living().erase(address_of(data));
  races::memory_ends(data, bytes);
  if (source == Source::user) return;
  const std::size_t size = source == Source::heap ? bytes : SharedFile::whole_pages(bytes);
  unpoison(data, size);
  if (source == Source::opened) {
    munmap(data, size);
    return;
  }
  if (kind == Kind::device) Runtime::get().device(device).used -= bytes;
  if (shared)  // what the heap gets back must be nobody else's
    mmap(data, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  std::free(data);
}

SharedName Allocation::share() {
  if (!shared) {
    const std::size_t size = SharedFile::whole_pages(bytes);
    SharedFile file = SharedFile::create(size);
    std::byte* elsewhere = file.map(size);
    std::memcpy(elsewhere, data, bytes);
    munmap(elsewhere, size);
    file.map(size, data);
    poison(data + bytes, size - bytes);
    shared.emplace(std::move(file));
    races::defined(data, bytes);  // another process may write it
  }
  return shared->name();
}

void Allocation::fill_with_nan() const {
  std::memset(data, 0xff, bytes);
  races::undefined(data, bytes);
}

AllocationPointer Runtime::allocate(Allocation::Kind kind, int on_device, std::size_t bytes,
                                    Allocation::Source source) {
  Device& owner = device(on_device);
  if (kind == Allocation::Kind::device)
    require(bytes <= config.device_bytes - std::min(owner.used, config.device_bytes),
            cudaErrorMemoryAllocation);
  auto made = std::make_shared<Allocation>(kind, source, on_device, bytes);
  if (kind == Allocation::Kind::device) {
    owner.used += bytes;
    owner.most_used = std::max(owner.most_used, owner.used);
  }
  allocations.emplace(reinterpret_cast<std::uintptr_t>(made->data), made);
  return made;
}

AllocationPointer Runtime::find(const void* data, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  const AllocationPointer& before = std::prev(after)->second;
  const std::size_t offset = address - std::prev(after)->first;
  if (offset >= before->bytes) return nullptr;
  require(bytes <= before->bytes - offset, cudaErrorInvalidValue);  // runs over its end
  return before;
}

AllocationPointer Runtime::take(void* data) {
  const auto it = allocations.find(reinterpret_cast<std::uintptr_t>(data));
  require(it != allocations.end(), cudaErrorInvalidValue);
  AllocationPointer taken = it->second;
  if (taken->of_graph) {  // its address stays the graph's
    require(taken->live, cudaErrorInvalidValue);
    taken->live = false;
  } else {
    allocations.erase(it);
  }
  return taken;
}

bool Runtime::can_access(int from, const Allocation& memory) const {
  if (memory.kind != Allocation::Kind::device || memory.device == from) return true;
  // cudaIpcOpenMemHandle enables peer access; cudaDeviceEnablePeerAccess does it for cudaMalloc's
  // memory, not for a pool's.
  if (memory.source == Allocation::Source::opened) return true;
  const std::vector<int>& peers = devices_[from]->peers;
  return memory.source == Allocation::Source::pages &&
         std::find(peers.begin(), peers.end(), memory.device) != peers.end();
}

}  // namespace simt::detail

using namespace simt::detail;
using Kind = Allocation::Kind;

namespace {

/// Memory of a kind that is freed by its own call.
AllocationPointer take_of_kind(Runtime& runtime, void* data, Kind kind) {
  const auto it = runtime.allocations.find(reinterpret_cast<std::uintptr_t>(data));
  require(it != runtime.allocations.end() && it->second->kind == kind &&
              it->second->source != Allocation::Source::opened,
          cudaErrorInvalidValue);
  return runtime.take(data);
}

void allocate_in_capture(Runtime& runtime, Stream& stream, std::size_t bytes, void** data) {
  const AllocationPointer made = runtime.allocate(Kind::device, stream.device, bytes);
  made->of_graph = true;
  made->live = false;
  poison(made->data, made->bytes);
  stream.capture->content->memory.push_back(made);
  submit(runtime, stream, cudaGraphNodeTypeMemAlloc, [memory = made.get()] {
    unpoison(memory->data, memory->bytes);
    memory->fill_with_nan();
  });
  *data = made->data;
}

void free_in_capture(Runtime& runtime, Stream& stream, void* data) {
  GraphContent& content = *stream.capture->content;
  const AllocationPointer known = runtime.find(data);
  if (!known || known->data != data || !known->of_graph)  // "the address of a graph allocation"
    invalidate(*stream.capture, cudaErrorInvalidValue);
  const auto among = [&known](const std::vector<AllocationPointer>& some) {
    return std::find(some.begin(), some.end(), known) != some.end();
  };
  require(!known->freed_by_graph && !among(content.freed), cudaErrorInvalidValue);
  if (among(content.memory))
    known->freed_by_graph = true;
  else
    content.freed.push_back(known);
  submit(runtime, stream, cudaGraphNodeTypeMemFree,
         [one = known.get()] { poison(one->data, one->bytes); });
}

}  // namespace

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return call_runtime([&](Runtime& runtime) {
    require(data != nullptr, cudaErrorInvalidValue);
    refuse_in_capture(runtime);
    *data = nullptr;
    if (bytes == 0) return;
    runtime.may_synchronize("cudaMalloc");
    const auto made =
        runtime.allocate(Kind::device, Runtime::current_device(), bytes, Allocation::Source::pages);
    made->fill_with_nan();
    *data = made->data;
  });
}

cudaError_t cudaFree(void* data) {
  return call_runtime([&](Runtime& runtime) {
    if (!data) return;
    refuse_in_capture(runtime);
    const AllocationPointer taken = take_of_kind(runtime, data, Kind::device);
    runtime.wait_for_device(taken->device, "cudaFree");
    if (taken->shared && taken->shared->held_elsewhere())
      runtime.break_device(taken->device,
                           "cudaFree of memory that another process has open: it must call "
                           "cudaIpcCloseMemHandle first");
    if (taken->of_graph) poison(taken->data, taken->bytes);
  });
}

cudaError_t simt::detail::free_at_once(void* data) {
  return call_runtime([&](Runtime& runtime) {
    refuse_in_capture(runtime);
    take_of_kind(runtime, data, Kind::device);
  });
}

cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t handle) {
  return call_runtime([&](Runtime& runtime) {
    require(data != nullptr, cudaErrorInvalidValue);
    *data = nullptr;
    Stream& stream = runtime.stream(handle);
    if (bytes == 0) return;
    if (stream.capture) return allocate_in_capture(runtime, stream, bytes, data);
    const auto made = runtime.allocate(Kind::device, stream.device, bytes);
    if (runtime.config.streams == simt::Streams::late) made->fill_with_nan();
    // In stream order: what another stream wrote before this was due is lost, as it may be on a
    // GPU.
    submit(runtime, stream, cudaGraphNodeTypeMemAlloc, [made] { made->fill_with_nan(); });
    *data = made->data;
  });
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t handle) {
  return call_runtime([&](Runtime& runtime) {
    Stream& stream = runtime.stream(handle);
    if (!data) return;
    if (stream.capture) return free_in_capture(runtime, stream, data);
    // Calls from now on do not know it; kernels enqueued before may use it until the stream is
    // here.
    AllocationPointer taken = take_of_kind(runtime, data, Kind::device);
    submit(runtime, stream, cudaGraphNodeTypeMemFree, [taken] {
      if (taken->of_graph) poison(taken->data, taken->bytes);
    });
  });
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  return call_runtime([&](Runtime& runtime) {
    require(data != nullptr, cudaErrorInvalidValue);
    refuse_in_capture(runtime);
    runtime.may_synchronize("cudaHostAlloc");
    *data = nullptr;
    if (bytes == 0) return;
    const auto made = runtime.allocate(Kind::pinned, Runtime::current_device(), bytes);
    made->fill_with_nan();
    races::defined(made->data, bytes);  // the host may write it
    *data = made->data;
  });
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes, unsigned flags) {
  return cudaHostAlloc(data, bytes, flags);
}

cudaError_t cudaFreeHost(void* data) {
  return call_runtime([&](Runtime& runtime) {
    if (!data) return;
    refuse_in_capture(runtime);
    const AllocationPointer taken = take_of_kind(runtime, data, Kind::pinned);
    runtime.wait_for_all("cudaFreeHost");
  });
}

cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned) {
  return call_runtime([&](Runtime& runtime) {
    require(data != nullptr && bytes > 0, cudaErrorInvalidValue);
    refuse_in_capture(runtime);
    runtime.may_synchronize("cudaHostRegister");
    require(!runtime.find(data), cudaErrorHostMemoryAlreadyRegistered);
    runtime.allocations.emplace(
        reinterpret_cast<std::uintptr_t>(data),
        std::make_shared<Allocation>(data, Runtime::current_device(), bytes));
  });
}

cudaError_t cudaHostUnregister(void* data) {
  return call_runtime([&](Runtime& runtime) {
    require(data != nullptr, cudaErrorInvalidValue);
    refuse_in_capture(runtime);
    const auto known = runtime.find(data);
    require(known && known->data == data && known->kind == Kind::registered,
            cudaErrorHostMemoryNotRegistered);
    runtime.take(data);
    runtime.wait_for_all("cudaHostUnregister");
  });
}

cudaError_t cudaHostGetDevicePointer(void** device_data, void* data, unsigned flags) {
  return call_runtime([&](Runtime& runtime) {
    require(device_data != nullptr && flags == 0, cudaErrorInvalidValue);
    const auto known = runtime.find(data);
    require(known && known->kind != Kind::device, cudaErrorInvalidValue);
    *device_data = data;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return call_runtime([&](Runtime& runtime) {
    require(attributes != nullptr, cudaErrorInvalidValue);
    void* address = const_cast<void*>(data);
    const auto known = runtime.find(data);
    if (!known)
      *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, address};
    else if (known->kind == Kind::device)
      *attributes = {cudaMemoryTypeDevice, known->device, address, nullptr};
    else
      *attributes = {cudaMemoryTypeHost, known->device, address, address};
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call_runtime([&](Runtime& runtime) {
    require(free_bytes && total_bytes, cudaErrorInvalidValue);
    const std::size_t used = runtime.device(Runtime::current_device()).used;
    *total_bytes = runtime.config.device_bytes;
    *free_bytes = *total_bytes - std::min(used, *total_bytes);
  });
}
