/// CUDA IPC: memory of one process that is used by others.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

using namespace simt::detail;

namespace {

/// What a cudaIpcMemHandle_t holds here.
struct Handle {
  std::uint64_t mark;
  SharedName name;
  std::uint64_t bytes;
  int device;
};
constexpr std::uint64_t ipc_mark = 0x6d656d2d63706900;
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  return call_runtime([&](Runtime& runtime) {
    require(handle != nullptr, cudaErrorInvalidValue);
    const AllocationPointer known = runtime.find(data);
    require(known && known->data == data && known->source == Allocation::Source::pages,
            cudaErrorInvalidValue);
    const Handle made{ipc_mark, known->share(), known->bytes, known->device};
    *handle = {};
    std::memcpy(handle->reserved, &made, sizeof made);
  });
}

cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned flags) {
  return call_runtime([&](Runtime& runtime) {
    require(data != nullptr && flags == cudaIpcMemLazyEnablePeerAccess, cudaErrorInvalidValue);
    refuse_in_capture(runtime);
    *data = nullptr;
    Handle wanted;
    std::memcpy(&wanted, handle.reserved, sizeof wanted);
    require(wanted.mark == ipc_mark, cudaErrorInvalidResourceHandle);
    require(wanted.name.process != getpid(), cudaErrorDeviceUninitialized);
    runtime.may_synchronize("cudaIpcOpenMemHandle");
    runtime.device(wanted.device);
    require(wanted.device == Runtime::current_device() || runtime.config.peer_access,
            cudaErrorPeerAccessUnsupported);
    for (OpenedMemory& one : runtime.opened)
      if (one.name == wanted.name) {
        ++one.times;
        *data = one.data;
        return;
      }
    std::optional<SharedFile> file = SharedFile::open(wanted.name);
    require(file.has_value(), cudaErrorMapBufferObjectFailed);
    const auto made = std::make_shared<Allocation>(std::move(*file), wanted.device, wanted.bytes);
    if (wanted.device != Runtime::current_device() && runtime.config.peer_access_lost)
      made->lose_what_is_written();
    runtime.allocations.emplace(reinterpret_cast<std::uintptr_t>(made->data), made);
    runtime.opened.push_back({wanted.name, made->data, 1});
    *data = made->data;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* data) {
  return call_runtime([&](Runtime& runtime) {
    refuse_in_capture(runtime);
    const auto one = std::find_if(runtime.opened.begin(), runtime.opened.end(),
                                  [data](const OpenedMemory& open) { return open.data == data; });
    require(one != runtime.opened.end(), cudaErrorInvalidValue);
    if (--one->times > 0) return;
    runtime.opened.erase(one);
    const AllocationPointer taken = runtime.take(data);
    runtime.wait_for_device(Runtime::current_device(), "cudaIpcCloseMemHandle");
  });
}
