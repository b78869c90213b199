#include <dnnl.h>
#include <omp.h>

#include <cstdint>
#include <dnnl.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/core/system/signals_blocked.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels {
namespace {

/// oneDNN spreads a product over OpenMP's threads. There is one rank per core already: it gets one.
/// Afterwards this thread has as many again as the program has asked for (OpenMP keeps the number
/// per thread).
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

/// For an inner size above 128 oneDNN's code for AVX (2.6, jit_avx_gemm_f32) points the stack
/// pointer into a block of the heap. A handler that ran there would write below that block: signals
/// wait until the product is done.
class WholeStack {
 public:
  explicit WholeStack(std::int64_t k) {
    if (k > 128) blocked_.emplace();
  }

 private:
  std::optional<SignalsBlocked> blocked_;
};

bool processor_has(dnnl::cpu_isa isa) {
  const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (has & static_cast<unsigned>(isa)) == static_cast<unsigned>(isa);
}

void sgemm(const GemmProblem<float>& p, std::int64_t first, std::int64_t columns) {
  const dnnl_status_t status =
      dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, columns, p.k, 1.0f, p.a,
                 p.transpose_a ? p.m : p.k, p.transpose_b ? p.b + first * p.k : p.b + first,
                 p.transpose_b ? p.k : p.n, p.accumulate ? 1.0f : 0.0f, p.c + first, p.n);
  check<Error>(status == dnnl_success, "[matmul] oneDNN failed with status {} for {} x {} x {}",
               static_cast<int>(status), p.m, p.k, p.n);
}

/// Where c has few rows or columns, oneDNN's code for AVX2 (2.6: nocopy_checker_avx2 in
/// gemm_driver.cpp) makes no copies of the factors. A b that begins at a multiple of 64 bytes, as
/// tensors do, is then slow if its rows are a multiple of 2 KiB apart: the lines that are read at a
/// time meet in few sets of the first-level cache, and the product takes 1.2 to 2 times as long as
/// with a b that begins elsewhere. Four columns are therefore computed first, and the rest begins
/// elsewhere. The sizes alone decide: an address must not change bits.
bool reads_slowly_in_place(const GemmProblem<float>& p) {
  static const bool avx2 =
      processor_has(dnnl::cpu_isa::avx2) && !processor_has(dnnl::cpu_isa::avx512_core);
  constexpr std::int64_t fewest_rows = 24;  // with less, two products are slower than one
  constexpr double makes_no_copies = 0.0038;
  return avx2 && !p.transpose_b && p.n % 512 == 0 && p.m >= fewest_rows &&
         1.0 / static_cast<double>(p.m) + 1.0 / static_cast<double>(p.n) >= makes_no_copies;
}

// A matrix (rows, columns) of row-major memory, or of the transposed one.
dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, bool transposed,
                          dnnl::memory::data_type type) {
  using Strides = dnnl::memory::dims;
  return {{rows, columns}, type, transposed ? Strides{1, rows} : Strides{columns, 1}};
}

struct Bf16Product {
  dnnl::memory::desc a, b, c;
  dnnl::matmul multiply;
};

// oneDNN keeps the last 1,024 of them: one that is there already costs about 1 us.
Bf16Product product(const GemmProblem<BFloat16, float>& p, const dnnl::engine& engine) {
  using Type = dnnl::memory::data_type;
  const auto a = matrix(p.m, p.k, p.transpose_a, Type::bf16);
  const auto b = matrix(p.k, p.n, p.transpose_b, Type::bf16);
  const auto c = matrix(p.m, p.n, false, Type::f32);
  dnnl::primitive_attr attributes;
  dnnl::post_ops sum;
  sum.append_sum(1.0f);
  if (p.accumulate) attributes.set_post_ops(sum);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc how(engine, a, b, c, attributes);
#else
  const dnnl::matmul::primitive_desc how({a, b, c}, attributes, engine);
#endif
  return {a, b, c, dnnl::matmul(how)};
}

}  // namespace

std::string_view bf16_unit() {
  if (processor_has(dnnl::cpu_isa::avx512_core_amx)) return "AMX";
  return processor_has(dnnl::cpu_isa::avx512_core_bf16) ? "AVX512-BF16" : "";
}

void cpu::gemm(const GemmProblem<float>& p) {
  const OneThread scope;
  const WholeStack stack(p.k);
  const std::int64_t before = reads_slowly_in_place(p) ? 4 : 0;
  if (before > 0) sgemm(p, 0, before);
  sgemm(p, before, p.n - before);
}

void cpu::gemm(const GemmProblem<BFloat16, float>& p) try {
  const OneThread scope;
  const WholeStack stack(p.k);
  thread_local const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(engine);
  const Bf16Product bf16 = product(p, engine);
  const auto memory = [&](const dnnl::memory::desc& of, const void* data) {
    return dnnl::memory(of, engine, const_cast<void*>(data));
  };
  bf16.multiply.execute(stream, {{DNNL_ARG_SRC, memory(bf16.a, p.a)},
                                 {DNNL_ARG_WEIGHTS, memory(bf16.b, p.b)},
                                 {DNNL_ARG_DST, memory(bf16.c, p.c)}});
  stream.wait();
} catch (const dnnl::error& error) {
  fail<Error>("[matmul] oneDNN: {} for bf16 {} x {} x {}", error.what(), p.m, p.k, p.n);
}

}  // namespace lockstep::kernels
