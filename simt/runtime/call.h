#pragma once
/// What every call of the runtime API has in common.

#include <mutex>
#include <new>
#include <type_traits>

#include "lockstep/simt/runtime/runtime.h"

namespace simt::detail {

/// Of this host thread.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool in_host_function = false;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};
inline thread_local ThreadState this_thread;

/// Remembers an error for cudaGetLastError.
inline cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) this_thread.last_error = error;
  return error;
}

enum class Context { needed, not_needed };

/// Runs `body`, which returns nothing or an error, under the lock; in late mode streams may move
/// before. A Refusal becomes the error returned. A call that needs the current device's context
/// does nothing if that is broken.
template <Context context = Context::needed, class Body>
cudaError_t call_runtime(Body&& body) {
  if (this_thread.in_host_function) return remember(cudaErrorNotPermitted);
  Runtime& runtime = Runtime::get();
  const std::lock_guard lock(runtime.mutex);
  runtime.used = true;
  if (!runtime.unusable.empty()) return remember(cudaErrorInitializationError);
  if (runtime.unloading) return remember(cudaErrorCudartUnloading);
  try {
    runtime.wait_for_holder();
    runtime.drift();
    const auto broken = [&runtime] {
      return context == Context::needed && !runtime.device(Runtime::current_device()).fault.empty();
    };
    if (broken()) return remember(cudaErrorLaunchFailure);
    if constexpr (std::is_void_v<decltype(body(runtime))>)
      body(runtime);
    else if (const cudaError_t error = body(runtime); error != cudaSuccess)
      return remember(error);
    return remember(broken() ? cudaErrorLaunchFailure : cudaSuccess);
  } catch (const Refusal& refusal) {
    return remember(refusal.error);
  } catch (const std::bad_alloc&) {
    return remember(cudaErrorMemoryAllocation);
  }
}

}  // namespace simt::detail
