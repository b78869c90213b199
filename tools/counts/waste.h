#pragma once
/// What kernels do to memory beside the least.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tools/counts/counted.h"

namespace lockstep::counts {

/// What of an operation is more than it has to be, an item for each kernel and kind of access:
///
///   "softmax_kernel: loads 8.00 (50 %)"           of their sectors less than 95 % are asked for
///   "softmax_kernel: shared stores 4.00 (1.00)"   bank conflicts
///   "softmax_kernel: copies of 4 bytes"           by cp.async, which has copies of 16
///   "DRAM 1.50 of the fewest"                     more than 1.03
///
/// It is empty for a large operation on tensors whose rows are whole accesses.
std::vector<std::string> waste(const Counted& counted);

/// What a memory-bound operation wastes all the same, and why. `what` is a part of the items.
struct WasteException {
  std::string_view operation, size, what, reason;
};
std::span<const WasteException> waste_exceptions();

/// Whether this is the exception for an item of waste(counted).
bool is_for(const WasteException& exception, const Problem& problem, std::string_view item);

}  // namespace lockstep::counts
