#pragma once
/// Copies of parts of a factor, in the order in which tiles read them.

#include <cstdint>
#include <memory>
#include <new>

#include "lockstep/kernels/cpu/chain/tile.h"

namespace lockstep::kernels::chain {

/// Memory of this thread, kept from call to call. Contents undefined. Two at a time: which = 0, 1.
template <class T, int which>
T* scratch(std::int64_t elements) {
  constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(T* memory) const { ::operator delete[](memory, alignment); }
  };
  thread_local std::unique_ptr<T[], Free> memory;
  thread_local std::int64_t size = 0;
  constexpr std::int64_t slack = line<T>;  // rows are written by full vectors
  if (size < elements) {
    memory.reset();
    memory.reset(new (alignment) T[static_cast<std::size_t>(elements + slack)]);
    size = elements;
  }
  return memory.get();
}

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// A factor with `k` and one more index i: [i stride + k] if it lies along k, else [k stride + i].
template <class T>
struct Factor {
  const T* data;
  std::int64_t stride;
  bool along_k;
};

/// As Tile::rows: along k at distances of row_pitch, else [k][row].
template <class V>
void pack_rows(const Factor<typename V::Element>& f, Range rows, Range k, typename V::Element* to) {
  if (f.along_k) {
    for (std::int64_t i = rows.begin; i < rows.end; ++i, to += row_pitch) {
      const auto* const from = f.data + i * f.stride + k.begin;
      std::int64_t p = 0;
      for (; p + V::width <= k.size(); p += V::width) V::store(to + p, V::load(from + p));
      if (p < k.size()) V::store(to + p, V::load_first(from + p, static_cast<int>(k.size() - p)));
    }
    return;
  }
  // A vector reaches into the next row's place, which is written after it.
  for (std::int64_t p = k.begin; p < k.end; ++p, to += rows.size()) {
    const auto* const from = f.data + p * f.stride + rows.begin;
    for (std::int64_t i = 0; i < rows.size(); i += V::width) {
      const std::int64_t rest = std::min<std::int64_t>(rows.size() - i, V::width);
      V::store(to + i, V::load_first(from + i, static_cast<int>(rest)));
    }
  }
}

/// n columns in full vectors.
template <class V>
std::int64_t padded(std::int64_t n) {
  return (n + V::width - 1) / V::width * V::width;
}

/// One panel of a factor that lies along k.
template <class V>
void pack_transposed(const Factor<typename V::Element>& f, Range columns, Range k,
                     typename V::Element* to) {
  constexpr std::int64_t width = V::width;
  const std::int64_t step = padded<V>(columns.size());
  for (std::int64_t j = 0; j < step; j += width) {
    const std::int64_t count = std::min(columns.size() - j, width);
    const auto* const from = f.data + (columns.begin + j) * f.stride + k.begin;
    for (std::int64_t p = 0; p < k.size(); p += width) {
      const int rest = static_cast<int>(std::min(k.size() - p, width));
      typename V::Vector square[width];
      unroll<V::width>([&](auto i) __attribute__((always_inline)) {
        square[i] = i < count ? V::load_first(from + i * f.stride + p, rest) : V::zero();
      });
      V::transpose(square);
      unroll<V::width>([&](auto i) __attribute__((always_inline)) {
        if (i < rest) V::store(to + (p + i) * step + j, square[i]);
      });
    }
  }
}

/// As Tile::columns, panel by panel: [k][column], filled up with +0 to full vectors. What does not
/// lie along k is read row by row, in long runs, which the processor foresees.
template <class V>
void pack_columns(const Factor<typename V::Element>& f, Range columns, Range k,
                  typename V::Element* to) {
  constexpr std::int64_t panel = V::width * V::vectors;
  const auto each_panel = [&](auto&& g) {
    for (std::int64_t begin = columns.begin; begin < columns.end; begin += panel)
      g(Range{begin, std::min(columns.end, begin + panel)},
        to + (begin - columns.begin) * k.size());
  };
  if (f.along_k)
    return each_panel([&](Range part, auto* at) { pack_transposed<V>(f, part, k, at); });
  for (std::int64_t p = k.begin; p < k.end; ++p)
    each_panel([&](Range part, auto* at) {
      const auto* const from = f.data + p * f.stride + part.begin;
      const std::int64_t step = padded<V>(part.size());
      at += (p - k.begin) * step;
      for (std::int64_t j = 0; j < step; j += V::width) {
        const std::int64_t rest = part.size() - j;
        V::store(at + j, rest >= V::width ? V::load(from + j)
                                          : V::load_first(from + j, static_cast<int>(rest)));
      }
    });
}

}  // namespace lockstep::kernels::chain
