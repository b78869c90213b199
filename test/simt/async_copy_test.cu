/// cp.async: a copy is there when it was waited for, and not before; and where it may lie.

#include <device_intrinsics.h>

#include <cmath>

#include "simt/support.h"

namespace simt::test {
namespace {

enum class Bug { none, no_wait, too_few_groups, no_barrier };

/// Each thread copies four floats of each of two rows, and adds what its neighbour copied.
template <Bug bug>
__global__ void copy_kernel(const float* rows, float* out) {
  auto* shared = dynamic_shared<float>();
  const unsigned i = threadIdx.x, n = blockDim.x, next = (i + 1) % n;
  for (unsigned row = 0; row < 2; ++row) {
    cp_async_16(shared + 4 * (row * n + i), rows + 4 * (row * n + i), true);
    cp_async_commit();
  }
  if (bug == Bug::too_few_groups) cp_async_wait<1>();
  if (bug != Bug::too_few_groups && bug != Bug::no_wait) cp_async_wait<0>();
  if (bug != Bug::no_barrier) __syncthreads();
  out[i] = shared[4 * next] + shared[4 * (n + next)];
}

TEST_CASE("cp.async: read without a wait, after too few groups, without a barrier: NaN") {
  constexpr int threads = 64;
  std::vector<float> values(threads * 8);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Device<float> rows(values), out(threads);
  const Shape shape{.grid = 1, .block = threads, .shared_bytes = threads * 32};
  const auto first = [&](auto* kernel) {
    launch(kernel, shape, nullptr, rows, out);
    return out.read();
  };
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const std::vector<float> sums = first(copy_kernel<Bug::none>);
    for (std::size_t i = 0; i < threads; ++i)
      CHECK(sums[i] == static_cast<float>(8 * ((i + 1) % threads) + 4 * threads));
    CHECK(std::isnan(first(copy_kernel<Bug::no_wait>)[0]));
    CHECK(std::isnan(first(copy_kernel<Bug::too_few_groups>)[0]));
  }
  const Settings settings(in_order(Order::ascending));
  CHECK(std::isnan(first(copy_kernel<Bug::no_barrier>)[0]));
}

template <int to, int from>
__global__ void misaligned_kernel(const float* data) {
  cp_async_16(dynamic_shared<float>() + to, data + from, true);
  cp_async_commit();
  cp_async_wait<0>();
}

TEST_CASE("cp.async: 16 bytes lie at multiples of 16, on both sides") {
  const Device<float> data(32);
  const Shape shape{.grid = 1, .block = 1, .shared_bytes = 128};
  launch(misaligned_kernel<4, 8>, shape, nullptr, data);
  CHECK(contains(report_of(misaligned_kernel<1, 8>, shape, data),
                 "cp.async of 16 bytes at a shared address that is not a multiple of that"));
  CHECK(contains(report_of(misaligned_kernel<4, 2>, shape, data),
                 "cp.async of 16 bytes at a global address that is not a multiple of that"));
}

}  // namespace
}  // namespace simt::test
