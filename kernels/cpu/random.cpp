#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/draws.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {

void CpuBackend::dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
                         const Tensor& mask) {
  visit_floating("dropout", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* to = out.data<T>();
    std::uint8_t* kept = mask.data<std::uint8_t>();
    const float threshold = keep_below(p);
    const T scale = keep_scale<T>(p);
    for (std::int64_t group = 0, i = 0; i < x.numel(); ++group) {
      const PhiloxBlock block = philox_block(state, group / philox_threads, group % philox_threads);
      for (int k = 0; k < 4 && i < x.numel(); ++k, ++i) {
        kept[i] = keeps(block, k, threshold);
        to[i] = from[i] * (kept[i] ? scale : T(0));
      }
    }
  });
}

void CpuBackend::dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                                  bool accumulate) {
  visit_floating("dropout_backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const std::uint8_t* kept = mask.data<std::uint8_t>();
    const T scale = keep_scale<T>(p);
    with_flag(accumulate, [&](auto add) {
      for (std::int64_t i = 0; i < dy.numel(); ++i) {
        const T gradient = from[i] * (kept[i] ? scale : T(0));
        if constexpr (add)
          to[i] += gradient;
        else
          to[i] = gradient;
      }
    });
  });
}

}  // namespace lockstep::kernels
