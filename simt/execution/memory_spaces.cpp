#include "lockstep/simt/execution/memory_spaces.h"

#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/execution/symbols.h"
#include "lockstep/simt/runtime/runtime.h"

namespace simt::detail {
namespace {

bool is_inside(const void* data, std::size_t bytes, const void* begin, std::size_t size) {
  const std::size_t offset =
      static_cast<const std::byte*>(data) - static_cast<const std::byte*>(begin);
  return offset <= size && bytes <= size - offset;  // huge, if before the beginning
}

}  // namespace

bool in_shared_memory(const void* data, std::size_t bytes) {
  const Executor& blocks = executor();
  return is_inside(data, bytes, blocks.shared(blocks.rank()), blocks.shared_bytes()) ||
         in_program(data);
}

bool in_global_memory(const void* data, std::size_t bytes) {
  for (const auto variable : executor().kernel().shared)
    if (is_inside(data, bytes, variable.data(), variable.size())) return false;
  return Allocation::holding(data, bytes) || in_program(data);
}

}  // namespace simt::detail
