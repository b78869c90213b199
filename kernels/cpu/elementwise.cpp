#include <algorithm>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/cpu/backend.h"
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

/// run(of_left), where of_left(a) = f(a, right): which of a power's ways is taken is known outside
/// of the loop.
template <class F, class T, class Run>
void with_right(F f, T right, Run&& run) {
  if constexpr (std::is_same_v<F, Pow>)
    detail::with_power(right, run);
  else
    run([=](T left) { return f(left, right); });
}

// A formula that is called, not written out in the loop, keeps it from being vectorized. Without
// flatten the compiler would decide by what else the source contains.

/// out = f(a), element by element.
template <class T, class F>
[[gnu::flatten]] void map_run(T* out, const T* a, std::int64_t n, F f) {
  LOCKSTEP_IVDEP
  for (std::int64_t i = 0; i < n; ++i) out[i] = f(a[i]);
}

/// out (+)= f(a, b), element by element.
template <bool accumulate, class T, class F>
[[gnu::flatten]] void combine_pairs(T* out, const T* a, const T* b, std::int64_t n, F f) {
  LOCKSTEP_IVDEP
  for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], f(a[i], b[i]));
}

/// One run of out (+)= f(a, b), where a and b advance by 1 or stay (stride 0). The strides are told
/// apart outside the loops, so that the compiler vectorizes each.
template <bool accumulate, class T, class F>
[[gnu::flatten]] void combine_run(T* out, const T* a, std::int64_t stride_a, const T* b,
                                  std::int64_t stride_b, std::int64_t n, F f) {
  if (stride_a != 0 && stride_b != 0) {
    combine_pairs<accumulate>(out, a, b, n, f);
  } else if (stride_a != 0) {
    with_right(f, *b, [&](auto of_left) {
      LOCKSTEP_IVDEP
      for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], of_left(a[i]));
    });
  } else if (stride_b != 0) {
    const T left = *a;
    LOCKSTEP_IVDEP
    for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], f(left, b[i]));
  } else {
    const T value = f(*a, *b);
    for (std::int64_t i = 0; i < n; ++i) put<accumulate>(out[i], value);
  }
}

/// Calls run(begin, count, small) for parts of x, n elements: whether all of a part's angles are
/// small, so that nothing in its loop stands in the way of vectors.
template <class T, class F>
void for_each_run_of_angles(const T* x, std::int64_t n, F&& run) {
  constexpr std::int64_t longest = 256;
  for (std::int64_t begin = 0; begin < n; begin += longest) {
    const std::int64_t count = std::min(longest, n - begin);
    int large = 0;
    for (std::int64_t i = begin; i < begin + count; ++i)
      large |= elementary::magnitude(x[i]) > elementary::largest_angle<T>;
    with_flag(large == 0, [&](auto small) { run(begin, count, small); });
  }
}

}  // namespace

void CpuBackend::unary(Unary op, const Tensor& x, const Tensor& out) {
  visit_floating(name_of(op), x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* to = out.data<T>();
    visit(op, [&](auto functor) {
      using F = decltype(functor);
      if constexpr (F::of_angles)
        for_each_run_of_angles(from, x.numel(), [&](auto begin, auto count, auto small) {
          map_run(to + begin, from + begin, count, [small](T a) { return F::forward(a, small); });
        });
      else
        map_run(to, from, x.numel(), [](T a) { return F::forward(a); });
    });
  });
}

void CpuBackend::unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                                bool accumulate) {
  visit_floating(name_of(op), dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *d = dy.data<T>(), *s = saved.data<T>();
    T* to = dx.data<T>();
    visit(op, [&](auto functor) {
      using F = decltype(functor);
      with_flag(accumulate, [&](auto add) {
        if constexpr (F::of_angles)
          for_each_run_of_angles(s, dy.numel(), [&](auto begin, auto count, auto small) {
            combine_pairs<add>(to + begin, d + begin, s + begin, count,
                               [small](T a, T b) { return F::backward(a, b, small); });
          });
        else
          combine_pairs<add>(to, d, s, dy.numel(), [](T a, T b) { return F::backward(a, b); });
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
