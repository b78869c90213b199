#pragma once
/// How kernels are started: cudaLaunchKernelEx. There is no <<<>>>, which C++ cannot parse.

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime_api.h"

namespace simt::detail {
/// Enqueues the kernel at `kernel`; `thread` is its body for the thread that the globals name.
cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel,
                   std::function<void()> thread);
}  // namespace simt::detail

/// The arguments are converted to the kernel's parameters and copied now.
template <class... Formal, class... Actual>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Formal...),
                               Actual&&... actual) {
  static_assert(sizeof...(Formal) == sizeof...(Actual), "as many arguments as parameters");
  return simt::detail::launch(
      config, reinterpret_cast<const void*>(kernel),
      [kernel, arguments = std::tuple<std::decay_t<Formal>...>(std::forward<Actual>(actual)...)] {
        std::apply(kernel, arguments);
      });
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* kernel) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel* kernel,
                                                          int block_threads,
                                                          std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      blocks, reinterpret_cast<const void*>(kernel), block_threads, shared_bytes);
}
