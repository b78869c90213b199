#pragma once
/// What the copy engine needs of barriers in shared memory, besides include/simt/copy_engine.h.

#include <cstddef>
#include <cstdint>
#include <string>

namespace simt::detail {

/// The initialized barrier that lies in block `rank` where `barrier` lies in the running one; fails
/// the thread, which executes the instruction `name`, if there is none.
std::byte* mbarrier_in(unsigned rank, const void* barrier, const char* name);

/// Counts copied bytes. Returns what is wrong, or nothing.
std::string mbarrier_copied(std::byte* barrier, std::int64_t bytes);

}  // namespace simt::detail
