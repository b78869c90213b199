// Elementwise kernels, casts and transposes, and those that choose elements.
#include "lockstep/kernels/elementwise.h"

#include <fmt/format.h>

#include "lockstep/kernels/indexed.h"
#include "lockstep/tools/counts/problem.h"

namespace lockstep::counts {
namespace {

using namespace kernels;

constexpr std::int64_t elements = 1 << 16, rows = 256, row_length = 256;
constexpr const char* flat_size = "65536";
constexpr const char* matrix_size = "256x256";
constexpr const char* elementwise = "kernels/cuda/elementwise.cu";
constexpr const char* matrix = "kernels/cuda/matrix.cu";
constexpr const char* indexed = "kernels/cuda/indexed.cu";

Problem unary_of(Unary op) {
  return {std::string(name_of(op)), flat_size, elementwise, [op](Device device) {
            Tensors t(device);
            const Tensor x = t.read({elements}), out = t.written({elements});
            return t.work([=] { unary(op, x, out); });
          }};
}

Problem unary_backward_of(Unary op) {
  return {fmt::format("{}_backward", name_of(op)), flat_size, elementwise, [op](Device device) {
            Tensors t(device);
            const Tensor dy = t.read({elements}), saved = t.read({elements}),
                         dx = t.written({elements});
            return t.work([=] { unary_backward(op, dy, saved, dx, false); });
          }};
}

Problem add() {
  return {"add", flat_size, elementwise, [](Device device) {
            Tensors t(device);
            const Tensor a = t.read({elements}), b = t.read({elements}),
                         out = t.written({elements});
            return t.work([=] { binary(Binary::add, a, b, out); });
          }};
}

/// A row for all rows, or a column for all columns.
Problem add_broadcast(const char* name, const Shape& shape) {
  return {name, matrix_size, elementwise, [shape](Device device) {
            Tensors t(device);
            const Tensor a = t.read({rows, row_length}), b = t.read(shape);
            const Tensor out = t.written({rows, row_length});
            return t.work([=] { binary(Binary::add, a, b, out); });
          }};
}

Problem axpy() {
  return {"scale_accumulate", flat_size, elementwise, [](Device device) {
            Tensors t(device);
            const Tensor x = t.read({elements}), out = t.both({elements});
            return t.work([=] { scale(0.5, x, out, true); });
          }};
}

Problem cast_of(DType from, DType to) {
  return {fmt::format("cast_{}_{}", name_of(from), name_of(to)), flat_size, matrix,
          [=](Device device) {
            Tensors t(device);
            const Tensor x = t.read({elements}, from), out = t.written({elements}, to);
            return t.work([=] { cast(x, out); });
          }};
}

Problem transpose_of(DType dtype, std::int64_t m, std::int64_t k) {
  return {fmt::format("transpose_{}", name_of(dtype)), fmt::format("{}x{}", m, k), matrix,
          [=](Device device) {
            Tensors t(device);
            const Tensor x = t.read({m, k}, dtype), out = t.written({k, m}, dtype);
            return t.work([=] { transpose(x, out); });
          }};
}

std::vector<Problem> indexed_problems() {
  const auto compare_less = [](Device device) {
    Tensors t(device);
    const Tensor a = t.read({elements}), b = t.read({elements}),
                 out = t.written({elements}, DType::u8);
    return t.work([=] { compare(Compare::lt, a, b, out); });
  };
  const auto window = [](Device device) {
    Tensors t(device);
    const Tensor x = t.read({elements}), out = t.written({elements});
    return t.work([=] { copy_window({elements}, x, whole({elements}), out, whole({elements})); });
  };
  const Taken rows_of_64{.outer = 1, .n = 512, .inner = 64, .count = 1024};
  const auto take_rows = [=](Device device) {
    Tensors t(device);
    const Tensor x = t.read({512, 64}), index = t.indices(1024, 512), out = t.written({1024, 64});
    return t.work([=] { take(rows_of_64, x, index, out); });
  };
  const auto add_rows = [=](Device device) {
    Tensors t(device);
    const Tensor dy = t.read({1024, 64}), index = t.indices(1024, 512), dx = t.written({512, 64});
    return t.work([=] { add_taken(rows_of_64, dy, index, dx, false); });
  };
  const auto sum_along = [](Device device) {
    Tensors t(device);
    const Tensor x = t.read({rows, row_length}), out = t.written({rows, row_length});
    return t.work([=] { cumulative_sum(1, rows, row_length, false, x, out); });
  };
  return {{"compare", flat_size, indexed, compare_less},
          {"copy_window", flat_size, indexed, window},
          {"take", "1024x64", indexed, take_rows},
          {"add_taken", "1024x64", indexed, add_rows},
          {"cumulative_sum", matrix_size, indexed, sum_along}};
}

Problem fill() {
  return {"fill", flat_size, "core/cuda/fill.cu", [](Device device) {
            Tensors t(device);
            const Tensor out = t.written({elements});
            return t.work([=] { out.fill(1); });
          }};
}

}  // namespace

std::vector<Problem> elementwise_problems() {
  std::vector<Problem> all = {fill(),
                              unary_of(Unary::relu),
                              unary_of(Unary::gelu),
                              unary_backward_of(Unary::relu),
                              add(),
                              add_broadcast("add_row", {row_length}),
                              add_broadcast("add_column", {rows, 1}),
                              axpy(),
                              cast_of(DType::f32, DType::bf16),
                              cast_of(DType::bf16, DType::f32),
                              cast_of(DType::f32, DType::f64),
                              transpose_of(DType::f32, 256, 256),
                              transpose_of(DType::f32, 250, 251),
                              transpose_of(DType::bf16, 256, 256),
                              transpose_of(DType::u8, 256, 256),
                              transpose_of(DType::f64, 256, 256)};
  for (Problem& problem : indexed_problems()) all.push_back(std::move(problem));
  return all;
}

}  // namespace lockstep::counts
