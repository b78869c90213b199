#pragma once
/// What indexed.h computes, element by element. A formula is an object with an operator()(i); a
/// backend's loop calls it for every i below a number, in any order.

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/core/compiler.h"
#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/formulas/functors.h"
#include "lockstep/kernels/indexed.h"

namespace lockstep::kernels {

/// A formula of two operands has a plan, too, and an operator()(i, place of a, place of b): a loop
/// over rows does without the plan's divisions.

/// Of integers, and comparisons; floating numbers have kernels of their own (elementwise.h).
template <class T, class Op, class Out = T>
struct CombineElements {
  const T *a, *b;
  StridePlan plan;
  Out* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i, std::int64_t of_a, std::int64_t of_b) const {
    out[i] = Op{}(a[of_a], b[of_b]);
  }
};

template <class To, class From>
struct ConvertElements {
  const From* x;
  To* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const { out[i] = static_cast<To>(x[i]); }
};

template <class Word>
struct MaskedCopyElements {
  const std::uint8_t* mask;
  const Word* x;
  StridePlan plan;  // of the mask and of x
  Word* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i, std::int64_t of_mask,
                                       std::int64_t of_x) const {
    out[i] = mask[of_mask] ? x[of_x] : out[i];
  }
};

template <class T, bool accumulate>
struct WindowElements {
  const T* x;
  StridePlan plan;  // from and to
  T* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t, std::int64_t from, std::int64_t to) const {
    if constexpr (accumulate)
      out[to] += x[from];
    else
      out[to] = x[from];
  }
};

/// The k-th index for the element (o, j) of the dimensions around the indexed one.
struct Indices {
  Taken what;
  const std::int64_t* index;
  unsigned long long* fault;  // where a GPU complains (core/cuda/stream.h); else all were checked
  LOCKSTEP_HOST_DEVICE std::int64_t at(std::int64_t o, std::int64_t k, std::int64_t j) const {
    const std::int64_t i = what.each ? index[(o * what.count + k) * what.inner + j] : index[k];
    if (i >= 0 && i < what.n) return i;
    if (fault)
      *fault = (1ull << 31 | (static_cast<unsigned long long>(what.n) & 0x7fffffffu)) << 32 |
               (static_cast<unsigned long long>(i) & 0xffffffffu);
    return 0;
  }
};

template <class Word>
struct TakeElements {
  Indices indices;
  const Word* x;
  Word* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const {
    const Taken& t = indices.what;
    const std::int64_t row = i / t.inner, j = i - row * t.inner;
    const std::int64_t o = row / t.count, k = row - o * t.count;
    out[i] = x[(o * t.n + indices.at(o, k, j)) * t.inner + j];
  }
};

/// For one (o, j): the terms of an element are added in their order, on every device.
template <class T>
struct AddTakenColumns {
  Indices indices;
  const T* dy;
  T* dx;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const {
    const Taken& t = indices.what;
    const std::int64_t o = i / t.inner, j = i - o * t.inner;
    for (std::int64_t k = 0; k < t.count; ++k)
      dx[(o * t.n + indices.at(o, k, j)) * t.inner + j] += dy[(o * t.count + k) * t.inner + j];
  }
};

/// For one (outer, inner).
template <class T>
struct CumulativeSumColumns {
  std::int64_t n, inner;
  bool reverse;
  const T* x;
  T* out;
  LOCKSTEP_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t o = i / inner, first = o * n * inner + (i - o * inner);
    T sum = 0;
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t at = first + (reverse ? n - 1 - k : k) * inner;
      sum = Add{}(sum, x[at]);
      out[at] = sum;
    }
  }
};

/// Calls f with a zero of each C++ type that has arithmetic.
template <class F>
decltype(auto) visit_number(std::string_view operation, DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::u8: return f(std::uint8_t{});
    default: fail<DTypeError>("[{}] takes no {}: cast it first", operation, name_of(dtype));
  }
}

/// Calls f with a zero of an unsigned integer of the dtype's size: for elements that only move.
template <class F>
void visit_word(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

template <class Word>
Word* words(const Tensor& tensor) {
  return reinterpret_cast<Word*>(tensor.raw());
}

/// The family over a backend's loop: run(n, formula) calls formula(i) for every i < n, and
/// run.fault() is where a formula complains of an index, or null.
template <class Run>
class IndexedKernels {
 public:
  explicit IndexedKernels(Run run) : run_(std::move(run)) {}

  void compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) const {
    using enum Compare;
    const bool swapped = op == gt || op == ge;  // a > b is b < a; a >= b is b <= a
    const Tensor &left = swapped ? b : a, &right = swapped ? a : b;
    const StridePlan plan = broadcast_plan(left.shape(), right.shape(), out.shape());
    visit_number("compare", a.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const auto with = [&]<class Op>(Op) {
        run_(out.numel(), CombineElements<T, Op, std::uint8_t>{left.data<T>(), right.data<T>(),
                                                               plan, out.data<std::uint8_t>()});
      };
      if (op == eq) return with(Equal{});
      if (op == ne) return with(NotEqual{});
      if (op == lt || op == gt) return with(Less{});
      with(LessEqual{});
    });
  }

  void combine(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) const {
    const StridePlan plan = broadcast_plan(a.shape(), b.shape(), out.shape());
    visit_number(name_of(op), a.dtype(), [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_integral_v<T>)
        visit(op, [&](auto f) {
          run_(out.numel(),
               CombineElements<T, decltype(f)>{a.data<T>(), b.data<T>(), plan, out.data<T>()});
        });
    });
  }

  void convert(const Tensor& x, const Tensor& out) const {
    visit_number("cast", x.dtype(), [&](auto from) {
      visit_number("cast", out.dtype(), [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        run_(out.numel(), ConvertElements<To, From>{x.data<From>(), out.data<To>()});
      });
    });
  }

  void masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) const {
    const StridePlan plan = broadcast_plan(mask.shape(), x.shape(), out.shape());
    visit_word(x.dtype(), [&](auto zero) {
      using W = decltype(zero);
      run_(out.numel(),
           MaskedCopyElements<W>{mask.data<std::uint8_t>(), words<W>(x), plan, words<W>(out)});
    });
  }

  void copy_window(const Shape& shape, const Tensor& x, const Window& from, const Tensor& out,
                   const Window& to, bool accumulate) const {
    const StridePlan plan = stride_plan(shape, from, to);
    if (accumulate)
      visit_floating("copy_window", x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        run_(shape.numel(), WindowElements<T, true>{x.data<T>(), plan, out.data<T>()});
      });
    else
      visit_word(x.dtype(), [&](auto zero) {
        using W = decltype(zero);
        run_(shape.numel(), WindowElements<W, false>{words<W>(x), plan, words<W>(out)});
      });
  }

  void take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) const {
    const Indices indices{what, index.data<std::int64_t>(), run_.fault()};
    visit_word(x.dtype(), [&](auto zero) {
      using W = decltype(zero);
      run_(out.numel(), TakeElements<W>{indices, words<W>(x), words<W>(out)});
    });
  }

  void add_taken(const Taken& what, const Tensor& dy, const Tensor& index, const Tensor& dx) const {
    const Indices indices{what, index.data<std::int64_t>(), run_.fault()};
    visit_floating("add_taken", dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      run_(what.outer * what.inner, AddTakenColumns<T>{indices, dy.data<T>(), dx.data<T>()});
    });
  }

  void cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse,
                      const Tensor& x, const Tensor& out) const {
    visit_number("cumulative_sum", x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      run_(outer * inner, CumulativeSumColumns<T>{n, inner, reverse, x.data<T>(), out.data<T>()});
    });
  }

 private:
  Run run_;
};

}  // namespace lockstep::kernels
