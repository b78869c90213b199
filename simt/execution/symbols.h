#pragma once
/// What the running program's symbol table (ELF) says about its kernels.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace simt::detail {

struct KernelInfo {
  std::string name;                             ///< demangled, or its address if the table lacks it
  std::vector<std::span<std::byte>> shared;     ///< its __shared__ variables
  std::size_t shared_bytes = 0;                 ///< of all of them
  std::size_t dynamic_shared_limit = 48 << 10;  ///< cudaFuncSetAttribute raises it
  bool non_portable_clusters = false;           ///< cudaFuncSetAttribute allows them
};

/// For the function at this address; found once, then remembered. Not thread-safe by itself.
KernelInfo& kernel_info(const void* kernel);

}  // namespace simt::detail
