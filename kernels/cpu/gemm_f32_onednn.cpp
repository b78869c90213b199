#include <dnnl.h>
#include <omp.h>

#include "lockstep/core/error.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::cpu {
namespace {

/// oneDNN spreads a product over OpenMP's threads. There is one rank per core already: ask for one
/// thread, in every thread that computes (OpenMP keeps the number per thread).
void use_one_thread() {
  thread_local bool done = false;
  if (done) return;
  omp_set_num_threads(1);
  done = true;
}

}  // namespace

void gemm(const GemmProblem<float>& p) {
  use_one_thread();
  const dnnl_status_t status =
      dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, p.a,
                 p.transpose_a ? p.m : p.k, p.b, p.transpose_b ? p.k : p.n,
                 p.accumulate ? 1.0f : 0.0f, p.c, p.n);
  check<Error>(status == dnnl_success, "[matmul] oneDNN failed with status {} for {} x {} x {}",
               static_cast<int>(status), p.m, p.k, p.n);
}

}  // namespace lockstep::kernels::cpu
