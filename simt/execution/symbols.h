#pragma once
/// What the running program's symbol table (ELF) says about its kernels.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace simt::detail {

struct KernelInfo {
  std::string name;                          ///< demangled, or its address if the table lacks it
  std::vector<std::span<std::byte>> shared;  ///< its __shared__ variables
  std::size_t shared_bytes = 0;              ///< of all of them
};

/// For the function at this address; found once, then remembered. Not thread-safe by itself.
const KernelInfo& kernel_info(const void* kernel);

/// Whether the instruction at `caller` is the program's own code: not in a function of the standard
/// library or the simulator, which also run in kernels. False if the table lacks it.
bool in_own_code(const void* caller);

/// Whether it is a variable of the running program: static, or __device__, or __shared__.
bool in_program(const void* data);

}  // namespace simt::detail
