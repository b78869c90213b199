#pragma once
/// Kernels that choose elements: by comparison, by a mask, by a window of strides, by indices. Each
/// is one formula for one element (formulas/indexed_formulas.h), which the processor and GPUs run
/// over all elements. They take every dtype unless said otherwise.
///
/// As in all kernels: outputs are given; tensors may have 0 elements; wrong shapes, dtypes and
/// devices throw ShapeError, DTypeError, DeviceError. Where an output is a gradient, `accumulate`
/// says whether to add to it (true) or overwrite it (false); such outputs are f32, f64, f16 or
/// bf16; 16-bit ones are added up in f32 and rounded once.

#include <array>
#include <string_view>

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/broadcast.h"

namespace lockstep::kernels {

enum class Compare : std::uint8_t { eq, ne, lt, le, gt, ge };

/// out (u8) = 1 where a op b, else 0, with NumPy's broadcasting; a and b of one dtype, but f16 or
/// bf16. Of NaN only `ne` is true.
void compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out);

/// out = x where mask (u8) is not 0; elsewhere `out` stays as it is. x and the mask broadcast to
/// `out`.
void masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out);

/// The `to` window of out (+)= the `from` window of x, both of `shape`. The windows must lie within
/// their tensors; that of `out` shows no element twice.
void copy_window(const Shape& shape, const Tensor& x, const Window& from, const Tensor& out,
                 const Window& to, bool accumulate = false);

/// Indices along one dimension of size n, whose product of sizes before it is `outer` and behind it
/// `inner`. `index` (i64) has `count` elements, for all; or, with `each`, outer * count * inner of
/// them: one for every element taken. An index outside [0, n) throws DataError: on the cpu before
/// anything is written; on a GPU at the next wait (core/gpu/stream.h), and a 0 is taken for it.
struct Taken {
  std::int64_t outer = 1, n = 1, inner = 1, count = 1;
  bool each = false;
  const char* operation = "take";  // for errors
};
/// out (outer, count, inner) = x (outer, n, inner) at the indices.
void take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out);
/// dx (outer, n, inner) (+)= dy (outer, count, inner), each row where it was taken from, in order.
void add_taken(const Taken& what, const Tensor& dy, const Tensor& index, const Tensor& dx,
               bool accumulate);

/// out_k = x_0 + ... + x_k along the middle dimension of (outer, n, inner), one after the other;
/// with `reverse` x_k + ... + x_(n-1). Every dtype but f16 and bf16.
void cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse,
                    const Tensor& x, const Tensor& out);

}  // namespace lockstep::kernels
