// The rungs of kernels/cuda/gemm/, by the operands' layouts.
#include "lockstep/kernels/cuda/gemm/ladder.h"

#include <fmt/format.h>

#include <span>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/kernels/cuda/gemm/hopper/hopper.h"
#include "lockstep/tools/counts/problem.h"

namespace lockstep::counts {
namespace {

struct Sizes {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;

  std::string text() const {
    return fmt::format("{}x{}x{} {}{}", m, n, k, transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N');
  }
};

/// run(problem, stream) enqueues it. `with_rows`: the sums of op(a)'s rows come with it. `factors`:
/// what both lie in memory as, T or f32.
template <class T, class C, class Run>
Problem product(const kernels::cuda::Rung<T>& rung, const std::string& type, const Sizes& s,
                Run run, bool with_rows = false, DType factors = dtype_of<T>()) {
  const auto prepare = [s, run, with_rows, factors](Device device) {
    Tensors t(device);
    const Tensor a = t.read(s.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, factors);
    const Tensor b = t.read(s.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, factors);
    const Tensor c = t.written({s.m, s.n}, dtype_of<C>());
    const Tensor rows = with_rows ? t.written({s.m}, dtype_of<C>()) : Tensor();
    return t.work([=] {
      auto problem = kernels::problem_of<T, C>(a, b, {}, c, {s.transpose_a, s.transpose_b});
      if (with_rows) problem.row_sums = rows.data<C>();
      run(problem, lockstep::cuda::queue_of(c).stream);
    });
  };
  return {fmt::format("gemm_{}_{}", rung.name, type), s.text(),
          fmt::format("kernels/cuda/gemm/{}.cu", rung.name), prepare};
}

/// Of a linear layer: the gradient of the input, forward, the gradient of the weights.
constexpr Sizes layouts[] = {
    {256, 256, 64, false, false}, {256, 256, 64, false, true}, {256, 256, 64, true, false}};

const auto tensor_16 = [](const auto& problem, cudaStream_t stream) {
  kernels::cuda::gemm_tensor_16(problem, stream);
};
/// With the tiles of large products, on which these rungs' times rest.
constexpr kernels::cuda::HopperPlan wide{kernels::cuda::HopperTile::wide, 1};
const auto wide_16 = [](const auto& problem, cudaStream_t stream) {
  kernels::cuda::gemm_hopper_16(problem, wide, stream);
};
const auto wide_tf32 = [](const auto& problem, cudaStream_t stream) {
  kernels::cuda::gemm_hopper_tf32(problem, wide, stream);
};

template <class T>
void add_rungs(std::vector<Problem>& all, std::span<const Sizes> of) {
  for (const kernels::cuda::Rung<T>& rung : kernels::cuda::rungs<T>())
    for (const Sizes& sizes : of)
      all.push_back(product<T, T>(rung, std::string(rung.tf32 ? "tf32" : name_of(dtype_of<T>())),
                                  sizes, rung.run));
}

}  // namespace

std::vector<Problem> rung_problems(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a,
                                   bool transpose_b) {
  const Sizes sizes[] = {{m, n, k, transpose_a, transpose_b}};
  std::vector<Problem> all;
  add_rungs<float>(all, sizes);
  add_rungs<BFloat16>(all, sizes);
  return all;
}

std::vector<Problem> ladder_problems() {
  std::vector<Problem> all;
  add_rungs<float>(all, layouts);
  add_rungs<BFloat16>(all, layouts);
  for (const auto& rung : kernels::cuda::rungs<float>())
    if (rung.number >= 8)
      all.push_back(product<float, float>(rung, rung.tf32 ? "tf32_and_rows" : "f32_and_rows",
                                          layouts[2], rung.run, true));
  for (const auto& rung : kernels::cuda::rungs<BFloat16>())
    all.push_back(product<BFloat16, BFloat16>(rung, "bf16_and_rows", layouts[2], rung.run, true));
  const auto rungs = kernels::cuda::rungs<BFloat16>();
  for (const Sizes& sizes : layouts)
    all.push_back(product<BFloat16, float>(rungs[0], "bf16_f32", sizes, tensor_16));
  for (const Sizes& sizes : layouts)
    all.push_back(
        product<BFloat16, float>(rungs[0], "bf16_from_f32", sizes, tensor_16, false, DType::f32));
  for (const Sizes& sizes : layouts)
    all.push_back(product<BFloat16, BFloat16>(rungs[1], "bf16_wide", sizes, wide_16));
  for (const kernels::cuda::Rung<float>& rung : kernels::cuda::rungs<float>()) {
    if (rung.number == 8)  // a long sum over few results, which is split
      all.push_back(product<float, float>(rung, "f32", {128, 128, 2048, false, false}, rung.run));
    if (rung.number == 12)  // the layout that is not turned
      all.push_back(product<float, float>(rung, "tf32_wide", layouts[1], wide_tf32));
  }
  return all;
}

}  // namespace lockstep::counts
