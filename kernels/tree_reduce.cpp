#include "lockstep/kernels/tree_reduce.h"

#include <algorithm>
#include <vector>

#include "lockstep/kernels/backend/backend.h"

namespace lockstep::kernels {

void tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, std::int64_t count, Device device) {
  check<ShapeError>(!sources.empty(), "[tree_reduce] takes at least 1 source, got {}",
                    sources.size());
  const bool summed = sources.size() == 1 &&  // one source is its own sum
                      std::ranges::all_of(destinations, [&](auto to) { return to == sources[0]; });
  if (count > 0 && !summed)
    backend_of(device).tree_reduce(dtype, sources, destinations, count, device);
}

// As many at a time as a GPU's kernel takes: a tree of a power of two is that over its branches.
Tensor tree_sum(const Tensor& parts) {
  constexpr std::int64_t most = 16;
  const std::int64_t n = parts.size(0), size = parts.numel() / n;
  const auto address = [&](std::int64_t k) {
    return parts.raw() + static_cast<std::size_t>(k * size) * size_of(parts.dtype());
  };
  for (std::int64_t step = 1; step < n; step *= most)
    for (std::int64_t first = 0; first < n; first += step * most) {
      std::vector<const std::byte*> sources;
      for (std::int64_t k = first; k < std::min(n, first + step * most); k += step)
        sources.push_back(address(k));
      std::byte* const sum[] = {address(first)};
      tree_reduce(parts.dtype(), sources, sum, size, parts.device());
    }
  return parts.slice(0, 1);
}

}  // namespace lockstep::kernels
