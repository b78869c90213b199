#pragma once
/// Where in the sources an instruction of the running program comes from.

#include <string>
#include <vector>

namespace simt::detail::watch {

/// "FILE:LINE" of the call that returns to `address`, in the kernel rather than in the simulator's
/// headers; its address if binutils' addr2line or the line is not there. It starts a process.
std::string source_line(const void* address);
/// The same of many, by one process.
std::vector<std::string> source_lines(const std::vector<const void*>& addresses);

/// The same; if that is in a header, also the line of the .cu file for which it was inlined there:
/// "common.cuh:89, for reduce.cu:57".
std::string kernel_line(const void* address);

}  // namespace simt::detail::watch
