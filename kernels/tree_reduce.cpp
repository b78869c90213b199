#include "lockstep/kernels/tree_reduce.h"

#include "lockstep/kernels/backend/backend.h"

namespace lockstep::kernels {

void tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, std::int64_t count, Device device) {
  check<ShapeError>(!sources.empty(), "[tree_reduce] takes at least 1 source, got {}",
                    sources.size());
  if (count > 0) backend_of(device).tree_reduce(dtype, sources, destinations, count, device);
}

}  // namespace lockstep::kernels
