#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/packs.h"
#include "lockstep/kernels/formulas/functors.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

template <bool accumulate, class T>
void put(T& out, T value) {
  if constexpr (accumulate)
    out += value;
  else
    out = value;
}

/// One run of out (+)= f(a, b), where a and b advance by 1 or stay (stride 0). The strides are told
/// apart outside the loops, so that the compiler vectorizes each.
template <bool accumulate, class T, class F>
void combine_run(T* out, const T* a, std::int64_t stride_a, const T* b, std::int64_t stride_b,
                 std::int64_t n, F f) {
  if (stride_a != 0 && stride_b != 0) {
    for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], f(a[i], b[i]));
  } else if (stride_a != 0) {
    const T right = *b;
    for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], f(a[i], right));
  } else if (stride_b != 0) {
    const T left = *a;
    for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], f(left, b[i]));
  } else {
    const T value = f(*a, *b);
    for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], value);
  }
}

/// out_i (+)= f(a_i, b_i), 16 at a time.
template <bool accumulate, class T, class F>
void combine_packs(const T* a, const T* b, T* out, std::int64_t n, F&& f) {
  const auto value = [&](const Pack<T>& of_a, const Pack<T>& of_b, const Pack<T>& old) {
    const Pack<T> result = f(of_a, of_b);
    return accumulate ? Pack<T>(old + result) : result;
  };
  std::int64_t i = 0;
  for (; i + pack_size <= n; i += pack_size)
    store<T, pack_size>(out + i, value(load(a + i), load(b + i), load(out + i)));
  if (const std::int64_t rest = n - i)
    store_first<T, pack_size>(
        out + i, rest,
        value(load_first(a + i, rest), load_first(b + i, rest, T(1)), load_first(out + i, rest)));
}

}  // namespace

void CpuBackend::unary(Unary op, const Tensor& x, const Tensor& out) {
  visit_floating(name_of(op), x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* to = out.data<T>();
    visit(op, [&](auto functor) {
      using F = decltype(functor);
      if constexpr (F::over_packs) {
        map_packs(from, to, x.numel(), [](const Pack<T>& block) -> Pack<T> {
          if constexpr (std::is_same_v<F, Exp>) return exponential<T, pack_size>(block);
          return by_halves<T, pack_size>(
              [](const auto& half) -> Pack<T, pack_size / 2> { return F::forward(half); }, block);
        });
      } else {
        for (std::int64_t i = 0, n = x.numel(); i < n; ++i) to[i] = F::forward(from[i]);
      }
    });
  });
}

void CpuBackend::unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                                bool accumulate) {
  visit_floating(name_of(op), dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    visit(op, [&](auto functor) {
      using F = decltype(functor);
      with_flag(accumulate, [&](auto add) {
        if constexpr (F::over_packs && !F::saves_output)
          combine_packs<add>(dy.data<T>(), saved.data<T>(), dx.data<T>(), dy.numel(),
                             [](const Pack<T>& a, const Pack<T>& b) {
                               return by_halves<T, pack_size>(
                                   [](const auto& d, const auto& s) -> Pack<T, pack_size / 2> {
                                     return F::backward(d, s);
                                   },
                                   a, b);
                             });
        else
          combine_run<add>(dx.data<T>(), dy.data<T>(), 1, saved.data<T>(), 1, dy.numel(),
                           [](T a, T b) { return F::backward(a, b); });
      });
    });
  });
}

void CpuBackend::binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out,
                        bool accumulate) {
  const StridePlan plan = broadcast_plan(a.shape(), b.shape(), out.shape());
  visit_floating(name_of(op), a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    visit(op, [&](auto f) {
      with_flag(accumulate, [&](auto add) {
        for_each_row(plan, [&](std::int64_t to, std::int64_t from_a, std::int64_t from_b) {
          combine_run<add>(out.data<T>() + to, a.data<T>() + from_a, plan.stride_a[0],
                           b.data<T>() + from_b, plan.stride_b[0], plan.sizes[0], f);
        });
      });
    });
  });
}

void CpuBackend::broadcast_to(const Tensor& x, const Tensor& out, bool accumulate, double alpha) {
  const StridePlan plan = broadcast_plan(x.shape(), Shape{}, out.shape());
  visit_floating("broadcast_to", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T factor = static_cast<T>(alpha);
    with_flag(accumulate, [&](auto add) {
      for_each_row(plan, [&](std::int64_t to, std::int64_t from, std::int64_t) {
        combine_run<add>(out.data<T>() + to, x.data<T>() + from, plan.stride_a[0], &factor, 0,
                         plan.sizes[0], Mul{});
      });
    });
  });
}

}  // namespace lockstep::kernels
