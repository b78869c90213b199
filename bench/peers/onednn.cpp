// oneDNN's product, called as directly as kernels/cpu/ calls it.
#include <dnnl.h>
#include <omp.h>

#include "lockstep/bench/kernels/peers.h"

namespace bench {

using namespace lockstep;

Run onednn_product(const Product& p) {
  if (p.out.dtype() != DType::f32) return {};
  const std::int64_t m = p.out.size(0), n = p.out.size(1);
  const std::int64_t k = p.a.size(p.flags.transpose_a ? 0 : 1);
  return [=] {
    omp_set_num_threads(1);
    const dnnl_status_t status =
        dnnl_sgemm(p.flags.transpose_a ? 'T' : 'N', p.flags.transpose_b ? 'T' : 'N', m, n, k, 1.0f,
                   p.a.data<float>(), p.flags.transpose_a ? m : k, p.b.data<float>(),
                   p.flags.transpose_b ? k : n, 0.0f, p.out.data<float>(), n);
    check<Error>(status == dnnl_success, "[oneDNN] status {}", static_cast<int>(status));
  };
}

}  // namespace bench
