#pragma once
/// The functions of indexed.h for every kind of device: each applies its formula in a loop.

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/formulas/indexed_formulas.h"

namespace lockstep::kernels {

/// Calls f with a zero of each C++ type that has arithmetic.
template <class F>
void visit_number(std::string_view operation, DType dtype, F&& f) {
  check<DTypeError>(!is_16_bit(dtype), "[{}] takes no {}: cast it first", operation, dtype);
  visit_any(dtype, [&](auto zero) {
    if constexpr (std::is_arithmetic_v<decltype(zero)>) f(zero);
  });
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

/// The family over a kind's loop. Loop::run(out, n, formula) calls formula(i) for every i < n;
/// Loop::fault(out) is where a formula complains of an index, or null.
template <class Loop>
class IndexedOver : public IndexedFunctions {
 public:
  void compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) override {
    using enum Compare;
    const bool swapped = op == gt || op == ge;  // a > b is b < a; a >= b is b <= a
    const Tensor &left = swapped ? b : a, &right = swapped ? a : b;
    const StridePlan plan = broadcast_plan(left.shape(), right.shape(), out.shape());
    visit_number("compare", a.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const auto with = [&]<class Op>(Op) {
        Loop::run(out, out.numel(),
                  CombineElements<T, Op, std::uint8_t>{left.data<T>(), right.data<T>(), plan,
                                                       out.data<std::uint8_t>()});
      };
      if (op == eq) return with(Equal{});
      if (op == ne) return with(NotEqual{});
      if (op == lt || op == gt) return with(Less{});
      with(LessEqual{});
    });
  }

  void combine_integers(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) override {
    const StridePlan plan = broadcast_plan(a.shape(), b.shape(), out.shape());
    visit_number(name_of(op), a.dtype(), [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_integral_v<T>)
        visit(op, [&](auto f) {
          Loop::run(out, out.numel(),
                    CombineElements<T, decltype(f)>{a.data<T>(), b.data<T>(), plan, out.data<T>()});
        });
    });
  }

  void convert(const Tensor& x, const Tensor& out) override {
    visit_number("cast", x.dtype(), [&](auto from) {
      visit_number("cast", out.dtype(), [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        Loop::run(out, out.numel(), ConvertElements<To, From>{x.data<From>(), out.data<To>()});
      });
    });
  }

  void masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) override {
    const StridePlan plan = broadcast_plan(mask.shape(), x.shape(), out.shape());
    visit_word(x.dtype(), [&](auto zero) {
      using W = decltype(zero);
      Loop::run(out, out.numel(),
                MaskedCopyElements<W>{mask.data<std::uint8_t>(), words<W>(x), plan, words<W>(out)});
    });
  }

  void copy_window(const Shape& shape, const Tensor& x, const Window& from, const Tensor& out,
                   const Window& to, bool accumulate) override {
    const StridePlan plan = stride_plan(shape, from, to);
    if (accumulate)
      visit_floating("copy_window", x.dtype(), [&](auto zero) {
        using T = decltype(zero);
        Loop::run(out, shape.numel(), WindowElements<T, true>{x.data<T>(), plan, out.data<T>()});
      });
    else
      visit_word(x.dtype(), [&](auto zero) {
        using W = decltype(zero);
        Loop::run(out, shape.numel(), WindowElements<W, false>{words<W>(x), plan, words<W>(out)});
      });
  }

  void take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) override {
    const Indices indices{what, index.data<std::int64_t>(), Loop::fault(out)};
    visit_word(x.dtype(), [&](auto zero) {
      using W = decltype(zero);
      Loop::run(out, out.numel(), TakeElements<W>{indices, words<W>(x), words<W>(out)});
    });
  }

  void add_taken(const Taken& what, const Tensor& dy, const Tensor& index, const Tensor& dx,
                 bool accumulate) override {
    if (!accumulate) dx.fill_zero();
    const Indices indices{what, index.data<std::int64_t>(), Loop::fault(dx)};
    visit_floating("add_taken", dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      Loop::run(dx, what.outer * what.inner,
                AddTakenColumns<T>{indices, dy.data<T>(), dx.data<T>()});
    });
  }

  void cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse,
                      const Tensor& x, const Tensor& out) override {
    visit_number("cumulative_sum", x.dtype(), [&](auto zero) {
      using T = decltype(zero);
      Loop::run(out, outer * inner,
                CumulativeSumColumns<T>{n, inner, reverse, x.data<T>(), out.data<T>()});
    });
  }
};

}  // namespace lockstep::kernels
