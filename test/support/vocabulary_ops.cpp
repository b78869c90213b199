// The rows of op_table.h's table for the larger vocabulary.
#include "lockstep/autograd/ops.h"
#include "support/op_table.h"

using namespace lockstep;

namespace {

using Operands = std::span<const Tensor>;
using Shapes = std::vector<std::vector<Shape>>;

const Shapes matrices = {{{3, 5}}, {{1, 1}}, {{0, 5}}, {{7, 17}}};
const Shapes alike = {{{3, 5}, {3, 5}}, {{1, 1}, {1, 1}}, {{0, 5}, {0, 5}}, {{7, 17}, {7, 17}}};
const Shapes cubes = {{{2, 3, 5}}, {{1, 1, 1}}, {{0, 3, 2}}, {{4, 7, 3}}};

/// Indices below n, with repetitions.
Tensor some_indices(const Shape& shape, std::int64_t n, Device device) {
  const Tensor index = Tensor::empty(shape, DType::i64);
  for (std::int64_t i = 0; i < index.numel(); ++i)
    index.data<std::int64_t>()[i] = (i * i + 1) % std::max<std::int64_t>(n, 1);
  return index.to(device);
}

}  // namespace

std::vector<OpCase> vocabulary_ops() {
  using Unary = Tensor (*)(const Tensor&);
  std::vector<OpCase> table;
  const auto add_unary = [&](const char* name, Unary function, double low, double high) {
    table.push_back({name,
                     [=](Operands x) { return function(x[0]); },
                     {{{}}, {{17}}, {{0}}, {{3, 5}}, {{65}}},
                     low,
                     high});
  };
  add_unary("expm1", expm1, -2, 2);
  add_unary("log1p", log1p, -0.5, 3);
  add_unary("sqrt", sqrt, 0.3, 3);
  add_unary("rsqrt", rsqrt, 0.3, 3);
  add_unary("reciprocal", reciprocal, 0.3, 3);
  add_unary("square", square, -2, 2);
  add_unary("abs", abs, -2, 2);
  add_unary("sign", sign, -2, 2);
  add_unary("floor", floor, 0.1, 0.9);
  add_unary("round", round, 0.6, 1.4);
  add_unary("sin", sin, -4, 4);
  add_unary("cos", cos, -4, 4);
  add_unary("erf", erf, -2, 2);
  add_unary("elu", elu, -2, 2);
  add_unary("log_sigmoid", log_sigmoid, -4, 4);
  add_unary("gelu", gelu, -3, 3);
  add_unary("gelu_tanh", gelu_tanh, -3, 3);
  add_unary("silu", silu, -4, 4);
  add_unary("softplus", softplus, -4, 4);
  const std::vector<OpCase> rows = {
      {"with numbers", [](Operands x) { return (1.5 - x[0] * 2.0) / 4.0 + 0.5 / (x[0] + 9.0); },
       matrices},
      {"pow of a number", [](Operands x) { return pow(x[0], -1.5) + pow(2.0, x[0]); }, matrices,
       0.4, 2},
      {"pow",
       [](Operands x) { return pow(x[0], x[1]); },
       {{{3, 5}, {3, 5}}, {{3, 5}, {5}}, {{1}, {4, 3}}, {{0}, {0}}},
       0.4,
       2},
      {"remainder", [](Operands x) { return x[0] % 3.0; }, matrices, 0.1, 2.9},
      {"maximum",
       [](Operands x) { return maximum(x[0], x[1]); },
       {{{3, 5}, {3, 5}}, {{3, 5}, {5}}, {{}, {7}}, {{0, 2}, {0, 2}}}},
      {"minimum", [](Operands x) { return minimum(x[0], x[1]); }, alike},
      {"lerp",
       [](Operands x) { return lerp(x[0], x[1], 0.3); },
       {{{3, 5}, {3, 5}}, {{3, 5}, {5}}, {{}, {7}}, {{0, 2}, {0, 2}}}},
      {"lerp from the other end", [](Operands x) { return lerp(x[0], x[1], 0.7); }, alike},
      {"where", [](Operands x) { return where(x[0] > x[1], x[0] * 2.0, x[1]); }, alike},
      {"where repeated",
       [](Operands x) { return where(x[0] > 0, x[1], x[0]); },
       {{{3, 5}, {5}}, {{3, 1}, {4}}}},
      {"masked_fill", [](Operands x) { return masked_fill(x[0], x[0] < 0.5, -3); }, matrices},
      {"clamp", [](Operands x) { return clamp(x[0], -0.55, 0.65); }, matrices},
      {"leaky_relu", [](Operands x) { return leaky_relu(x[0], 0.1); }, matrices},
      {"tril", [](Operands x) { return tril(x[0], 1); }, cubes},
      {"triu", [](Operands x) { return triu(x[0]); }, matrices},
      {"sum of rows", [](Operands x) { return sum(x[0], 0); }, matrices},
      {"sum of outer dimensions",
       [](Operands x) {
         return sum(x[0], {0, -1}, keepdim);
       },
       cubes},
      {"mean of columns", [](Operands x) { return mean(x[0], 1, keepdim); }, matrices},
      {"var", [](Operands x) { return var(x[0], 1); }, {{{3, 5}}, {{0, 5}}, {{7, 17}}}},
      {"stdev", [](Operands x) { return stdev(x[0], 0); }, {{{3, 5}}, {{7, 17}}}},
      {"norm", [](Operands x) { return norm(x[0], 1); }, matrices},
      {"amax", [](Operands x) { return amax(x[0], 1); }, {{{3, 5}}, {{1, 1}}, {{7, 17}}}},
      {"amin",
       [](Operands x) {
         return amin(x[0], {0, 1});
       },
       {{{3, 5}}, {{2, 3, 4}}}},
      {"max along", [](Operands x) { return max(x[0], 0).values; }, {{{3, 5}}, {{7, 17}}}},
      {"softmax", [](Operands x) { return softmax(x[0], 1); }, matrices},
      {"softmax of columns", [](Operands x) { return softmax(x[0], 0); }, {{{3, 5}}, {{7, 17}}}},
      {"log_softmax of columns",
       [](Operands x) { return log_softmax(x[0], 0); },
       {{{3, 5}}, {{7, 17}}}},
      {"logsumexp", [](Operands x) { return logsumexp(x[0], 1); }, matrices},
      {"cumsum", [](Operands x) { return cumsum(x[0], 1); }, cubes},
      {"permute",
       [](Operands x) {
         return permute(x[0], {2, 0, 1});
       },
       cubes},
      {"transpose of two", [](Operands x) { return transpose(x[0], 0, -1); }, cubes},
      {"flip",
       [](Operands x) {
         return flip(x[0], {0, 2});
       },
       cubes},
      {"slice", [](Operands x) { return slice(x[0], 1, 1, -1); }, cubes},
      {"select", [](Operands x) { return select(x[0], 2, -1); }, cubes},
      {"cat",
       [](Operands x) {
         return cat({x[0], x[1], x[0]}, 1);
       },
       alike},
      {"stack",
       [](Operands x) {
         return stack({x[0], x[1]}, -1);
       },
       alike},
      {"index_select",
       [](Operands x) {
         return index_select(x[0], 1, some_indices({9}, x[0].size(1), x[0].device()));
       },
       {{{2, 3, 5}}, {{0, 3, 2}}, {{300, 4, 7}}}},
      {"embedding",
       [](Operands x) {
         return embedding(x[0], some_indices({4, 3}, 3, x[0].device()));
       },
       {{{3, 5}}, {{7, 1}}, {{4, 0}}}},
      {"gather",
       [](Operands x) {
         return gather(x[0], 1, some_indices({x[0].size(0), 6}, x[0].size(1), x[0].device()));
       },
       {{{3, 5}}, {{0, 5}}, {{70, 9}}}},
      {"matmul of batches",
       [](Operands x) { return matmul(x[0], x[1]); },
       {{{2, 3, 5}, {2, 5, 4}},
        {{2, 3, 5}, {5, 4}},
        {{2, 1, 3, 5}, {3, 5, 2}},
        {{0, 3, 5}, {5, 4}}}},
      {"matmul of transposed batches",
       [](Operands x) { return matmul(x[0], x[1], {.transpose_a = true, .transpose_b = true}); },
       {{{2, 5, 3}, {2, 4, 5}}}},
      {"matmul of vectors",
       [](Operands x) { return matmul(x[0], x[1]) + dot(x[1], x[1]); },
       {{{3, 5}, {5}}, {{2, 3, 5}, {5}}}},
      {"outer", [](Operands x) { return outer(x[0], x[1]); }, {{{3}, {5}}, {{0}, {4}}}},
      {"linear of batches",
       [](Operands x) { return linear(x[0], x[1], x[2]); },
       {{{2, 3, 5}, {4, 5}, {4}}}},
      {"l1", [](Operands x) { return l1(x[0], x[1]); }, alike},
      {"huber", [](Operands x) { return huber(x[0], x[1], 0.7); }, alike},
      {"mse of each", [](Operands x) { return mse(x[0], x[1], Reduction::none); }, alike},
      {"bce_with_logits", [](Operands x) { return bce_with_logits(x[0], sigmoid(x[1])); }, alike},
      {"cross_entropy with options",
       [](Operands x) {
         const Tensor labels = some_indices({x[0].size(0)}, x[0].size(1), x[0].device());
         const Tensor weight = cast(Tensor::linspace(0.5, 2, x[0].size(1)), x[0].dtype());
         return cross_entropy(
             x[0], labels,
             {.weight = weight.to(x[0].device()), .label_smoothing = 0.1, .ignore_index = 2});
       },
       {{{6, 5}}, {{1, 3}}, {{0, 3}}}},
      {"layer_norm",
       [](Operands x) { return layer_norm(x[0], x[1], x[2]); },
       {{{3, 5}, {5}, {5}}, {{2, 3, 17}, {17}, {17}}, {{0, 5}, {5}, {5}}}},
      {"rms_norm",
       [](Operands x) { return rms_norm(x[0], x[1]); },
       {{{3, 5}, {5}}, {{7, 17}, {17}}, {{0, 5}, {5}}}},
  };
  table.insert(table.end(), rows.begin(), rows.end());
  return table;
}
