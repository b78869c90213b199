/// Products by warpgroups: when their sums are there, and what may happen to sums before.
/// (test/cuda/hopper_test.cpp runs this project's kernels that use them.)

#include <cmath>

#include "simt/panels.h"

namespace simt::test {
namespace {

enum class Bug { none, no_fence, no_new_fence, no_commit, no_wait, too_few_groups, touched };

/// Adds a product of ones twice, 16 each, to sums that begin with 1. Each thread writes a sum.
template <Bug bug>
__global__ void __launch_bounds__(128) product_kernel(float* out) {
  unsigned char* panel = first_panel();
  for (unsigned i = threadIdx.x; i < 256 * 64; i += blockDim.x)
    reinterpret_cast<__half*>(panel)[i] = __float2half(1.0f);
  __syncthreads();
  // Rows of 128 bytes, swizzled: all of them are the same here.
  const std::uint64_t ones = simt::detail::shared_address(panel) >> 4 | std::uint64_t{1} << 16 |
                             std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
  hopper::Accumulators<256> sum;
  for (auto& group : sum)
    for (float& value : group) value = 1.0f;
  if (bug != Bug::no_fence) hopper::fence_products();
  for (int round = 0; round < 2; ++round) {
    hopper::issue_product<__half, false, false>(sum, ones, ones);
    if (bug == Bug::touched) sum[7][1] = 1.0f;
    if (bug != Bug::no_commit) hopper::commit_products();
    if (bug == Bug::no_new_fence) hopper::wait_products<1>();
  }
  if (bug == Bug::too_few_groups) hopper::wait_products<1>();
  if (bug != Bug::too_few_groups && bug != Bug::no_wait) hopper::wait_products<0>();
  out[threadIdx.x] = sum[31][3];
  if (bug == Bug::too_few_groups) hopper::wait_products<0>();
}

const Shape shape{.grid = 1, .block = 128, .shared_bytes = (32 << 10) + 1024};

TEST_CASE("products by warpgroups: sums are there after a wait for their group, and not before") {
  const Device<float> out(128);
  for (const Config& config : every_order()) {
    const Settings settings(hopper(config));
    launch(product_kernel<Bug::none>, shape, nullptr, out);
    CHECK(out.read() == std::vector<float>(128, 33.0f));
    launch(product_kernel<Bug::too_few_groups>, shape, nullptr, out);
    for (const float sum : out.read()) CHECK(std::isnan(sum));
  }
}

TEST_CASE("products by warpgroups: a fence after the thread's access to sums") {
  const Device<float> out(128);
  const Settings settings(hopper());
  const std::string missing = "wgmma.mma_async without a wgmma.fence since";
  CHECK(contains(report_of(product_kernel<Bug::no_fence>, shape, out), missing));
  CHECK(contains(report_of(product_kernel<Bug::no_new_fence>, shape, out), missing));
}

TEST_CASE("products by warpgroups: committed, waited for, and their sums left alone") {
  const Device<float> out(128);
  const Settings settings(hopper());
  CHECK(contains(report_of(product_kernel<Bug::no_commit>, shape, out),
                 "wgmma.mma_async without a wgmma.commit_group before the end in kernel "));
  for (const float sum : out.read()) CHECK(std::isnan(sum));
  CHECK(contains(report_of(product_kernel<Bug::no_wait>, shape, out),
                 "wgmma.commit_group without a wgmma.wait_group before the end in kernel "));
  CHECK(contains(report_of(product_kernel<Bug::touched>, shape, out),
                 "wgmma: sums were written before the wait for their product in kernel "));
}

}  // namespace
}  // namespace simt::test
