#pragma once
/// How kernels are started: cudaLaunchKernelEx. There is no <<<>>>, which C++ cannot parse.

#include <cstddef>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime_api.h"

namespace simt::detail {

/// A kernel with its arguments, `bytes` of them.
struct KernelCall {
  std::shared_ptr<const void> arguments;
  std::size_t bytes;
  void (*run)(const void* arguments);  ///< for the thread that the globals name
};

/// Enqueues the kernel at `kernel`.
cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, KernelCall call);

}  // namespace simt::detail

/// The arguments are converted to the kernel's parameters and copied now.
template <class... Formal, class... Actual>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Formal...),
                               Actual&&... actual) {
  static_assert(sizeof...(Formal) == sizeof...(Actual), "as many arguments as parameters");
  struct Call {
    void (*kernel)(Formal...);
    std::tuple<std::decay_t<Formal>...> arguments;
  };
  const auto run = [](const void* it) {
    const Call& call = *static_cast<const Call*>(it);
    std::apply(call.kernel, call.arguments);
  };
  return simt::detail::launch(
      config, reinterpret_cast<const void*>(kernel),
      {std::make_shared<Call>(Call{kernel, {std::forward<Actual>(actual)...}}), sizeof(Call), run});
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
