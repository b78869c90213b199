#pragma once
/// The sums on which all others stand, in f64 whatever is added. Their order is described in
/// reduce.h.

#include <bit>

#include "lockstep/kernels/cpu/packs.h"

namespace lockstep::kernels {

/// Terms are added pairwise: up to so many one after the other, more in two parts.
inline constexpr std::int64_t one_after_the_other = 128;

/// Where pairwise summation cuts n > 1 terms in two.
inline std::int64_t pairwise_cut(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n - 1)));
}

inline constexpr int sum_width = 32;
using SumPack = Pack<double, sum_width>;

/// row(begin) + row(begin + 1) + ... of `rows` > 0 packs.
template <class Row>
SumPack sum_packs(std::int64_t begin, std::int64_t rows, const Row& row) {
  if (rows > one_after_the_other) {
    const std::int64_t cut = pairwise_cut(rows);
    return sum_packs(begin, cut, row) + sum_packs(begin + cut, rows - cut, row);
  }
  SumPack total = row(begin);
  for (std::int64_t i = begin + 1; i < begin + rows; ++i) total += row(i);
  return total;
}

/// The sum of term(a, ...) over n elements of each array, which it gets as packs. It returns a pack
/// of f64.
template <class Term, class... T>
double sum_terms(std::int64_t n, const Term& term, const T*... x) {
  const std::int64_t rows = n / sum_width, rest = n % sum_width;
  SumPack total = SumPack::Zero();
  if (rows > 0)
    total = sum_packs(0, rows, [&](std::int64_t i) -> SumPack {
      return term(load<T, sum_width>(x + i * sum_width)...);
    });
  if (rest > 0) {
    SumPack last = term(load_first<T, sum_width>(x + rows * sum_width, rest)...);
    std::fill(last.data() + rest, last.data() + sum_width, 0.0);
    total += last;
  }
  return fold<double, sum_width>(total);
}

/// What is added up of elements in f64, which may be packs of them: the elements, or their squares.
struct AsTheyAre {
  template <class V>
  auto operator()(const V& x) const {
    return x;
  }
};
struct Squares {
  template <class V>
  auto operator()(const V& x) const {
    return x * x;
  }
};

/// The sum of n neighbours.
template <class Term = AsTheyAre, class T>
double sum_run(const T* x, std::int64_t n) {
  return sum_terms(
      n, [](const auto& v) -> SumPack { return Term{}(v.template cast<double>()); }, x);
}

/// So many columns are added up at a time: the sums of a few levels stay in the first-level cache.
inline constexpr std::int64_t columns_of_sums = 512;

/// out_j = value(begin, j) + value(begin + 1, j) + ... of `rows` rows, for each of at most
/// columns_of_sums columns; f64.
template <class Value>
void sum_columns(std::int64_t begin, std::int64_t rows, std::int64_t columns, const Value& value,
                 double* __restrict out) {
  if (rows > one_after_the_other) {
    const std::int64_t cut = pairwise_cut(rows);
    double other[columns_of_sums];
    sum_columns(begin, cut, columns, value, out);
    sum_columns(begin + cut, rows - cut, columns, value, other);
    for (std::int64_t j = 0; j < columns; ++j) out[j] += other[j];
    return;
  }
  std::fill_n(out, columns, 0.0);
  std::int64_t row = begin;
  for (; row + 4 <= begin + rows; row += 4)  // a sum is read and written once for four rows
    for (std::int64_t j = 0; j < columns; ++j)
      out[j] = out[j] + value(row, j) + value(row + 1, j) + value(row + 2, j) + value(row + 3, j);
  for (; row < begin + rows; ++row)
    for (std::int64_t j = 0; j < columns; ++j) out[j] += value(row, j);
}

}  // namespace lockstep::kernels
