// The rungs of kernels/cuda/gemm/, by the operands' layouts.
#include "lockstep/kernels/cuda/gemm/ladder.h"

#include <fmt/format.h>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/tools/counts/problem.h"

namespace lockstep::counts {
namespace {

using kernels::GemmProblem;

struct Sizes {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;

  std::string text() const {
    return fmt::format("{}x{}x{} {}{}", m, n, k, transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N');
  }
};

template <class T, class C>
Problem product(const kernels::cuda::Rung<T>& rung, const std::string& type, const Sizes& s,
                void (*run)(const GemmProblem<T, C>&, cudaStream_t)) {
  const auto prepare = [s, run](Device device) {
    Tensors t(device);
    const Tensor a = t.read(s.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, dtype_of<T>());
    const Tensor b = t.read(s.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, dtype_of<T>());
    const Tensor c = t.written({s.m, s.n}, dtype_of<C>());
    return t.work([=] {
      run({s.m, s.n, s.k, a.data<T>(), s.transpose_a, b.data<T>(), s.transpose_b, c.data<C>(),
           false},
          lockstep::cuda::queue_of(c).stream);
    });
  };
  return {fmt::format("gemm_{}_{}", rung.name, type), s.text(),
          fmt::format("kernels/cuda/gemm/{}.cu", rung.name), prepare};
}

/// Forward, the gradient of the input, the gradient of the weights.
constexpr Sizes layouts[] = {
    {256, 256, 64, false, false}, {256, 256, 64, false, true}, {256, 256, 64, true, false}};

template <class T>
void add_rungs(std::vector<Problem>& all) {
  for (const kernels::cuda::Rung<T>& rung : kernels::cuda::rungs<T>())
    for (const Sizes& sizes : layouts)
      all.push_back(
          product(rung, std::string(rung.tf32 ? "tf32" : name_of(dtype_of<T>())), sizes, rung.run));
}

}  // namespace

std::vector<Problem> ladder_problems() {
  std::vector<Problem> all;
  add_rungs<float>(all);
  add_rungs<BFloat16>(all);
  const auto rungs = kernels::cuda::rungs<BFloat16>();
  for (const Sizes& sizes : layouts)
    all.push_back(
        product(rungs[0], "bf16_f32", sizes, &kernels::cuda::gemm_tensor_16<BFloat16, float>));
  // A long sum over few results, which is split.
  for (const kernels::cuda::Rung<float>& rung : kernels::cuda::rungs<float>())
    if (rung.number == 8)
      all.push_back(product(rung, "f32", {128, 128, 2048, false, false}, rung.run));
  return all;
}

}  // namespace lockstep::counts
