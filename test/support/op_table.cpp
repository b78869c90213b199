#include "support/op_table.h"

#include <cmath>
#include <random>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"

using namespace lockstep;

namespace {

using Operands = std::span<const Tensor>;
using Shapes = std::vector<std::vector<Shape>>;

// Broadcasting in every direction, and sizes 0, 1, odd.
const Shapes pairs = {{{}, {}},
                      {{5}, {5}},
                      {{0}, {0}},
                      {{3, 7}, {3, 7}},
                      {{3, 7}, {7}},
                      {{7}, {3, 7}},
                      {{3, 1}, {1, 5}},
                      {{3, 5}, {3, 1}},
                      {{4, 3}, {}},
                      {{}, {2, 3}},
                      {{2, 1, 3}, {4, 1}},
                      {{0, 3}, {3}},
                      {{1}, {17}},
                      {{2, 3, 1, 2}, {3, 2, 1}}};
const Shapes singles = {{{}}, {{1}}, {{17}}, {{0}}, {{3, 5}}, {{0, 4}}, {{2, 3, 4}}, {{65}}};

Tensor labels_for(const Tensor& logits) {
  Tensor labels = Tensor::empty({logits.size(0)}, DType::i64);
  for (std::int64_t i = 0; i < labels.numel(); ++i)
    labels.data<std::int64_t>()[i] = (i * 5 + 2) % logits.size(1);
  return labels.to(logits.device());
}

std::vector<OpCase> make_table() {
  std::vector<OpCase> table = {
      {"add", [](Operands x) { return x[0] + x[1]; }, pairs},
      {"sub", [](Operands x) { return x[0] - x[1]; }, pairs},
      {"mul", [](Operands x) { return x[0] * x[1]; }, pairs},
      {"div", [](Operands x) { return x[0] / x[1]; }, pairs, 0.5, 2},
      {"neg", [](Operands x) { return -x[0]; }, singles},
      {"exp", [](Operands x) { return exp(x[0]); }, singles},
      {"log", [](Operands x) { return log(x[0]); }, singles, 0.2, 3},
      {"relu", [](Operands x) { return relu(x[0]); }, singles},
      {"sigmoid", [](Operands x) { return sigmoid(x[0]); }, singles},
      {"tanh", [](Operands x) { return tanh(x[0]); }, singles},
      {"scale", [](Operands x) { return scale(x[0], -1.75); }, singles},
      {"cast", [](Operands x) { return cast(cast(x[0], DType::f64), x[0].dtype()); }, singles},
      {"dropout",
       [](Operands x) {
         default_philox().manual_seed(5);  // the same mask at every evaluation
         return dropout(x[0], 0.4);
       },
       singles},
      {"sum", [](Operands x) { return sum(x[0]); }, singles},
      {"mean", [](Operands x) { return mean(x[0]); }, singles},
      {"reshape",
       [](Operands x) {
         return reshape(x[0], {x[0].numel(), 1});
       },
       singles},
      {"broadcast_to",
       [](Operands x) {
         return broadcast_to(x[0], {2, 3, 5});
       },
       {{{}}, {{5}}, {{3, 1}}, {{1, 5}}, {{2, 1, 1}}, {{2, 3, 5}}}},
      {"transpose",
       [](Operands x) { return transpose(x[0]); },
       {{{1, 1}}, {{3, 5}}, {{0, 4}}, {{2, 0, 3}}, {{4, 3, 7}}, {{2, 1, 33, 70}}}},
      {"linear",
       [](Operands x) { return linear(x[0], x[1], x[2]); },
       {{{3, 5}, {4, 5}, {4}},
        {{1, 1}, {1, 1}, {1}},
        {{0, 5}, {4, 5}, {4}},
        {{7, 2}, {17, 2}, {17}}}},
      {"linear_relu",
       [](Operands x) { return linear_relu(x[0], x[1], x[2]); },
       {{{3, 5}, {4, 5}, {4}}, {{1, 1}, {1, 1}, {1}}, {{0, 5}, {4, 5}, {4}}}},
      {"linear without bias",
       [](Operands x) { return linear(x[0], x[1]); },
       {{{3, 5}, {4, 5}}, {{0, 5}, {4, 5}}}},
      {"batch_norm",
       [](Operands x) { return batch_norm(x[0], x[1], x[2], 0.25); },
       {{{7, 5}, {5}, {5}},
        {{1, 3}, {3}, {3}},
        {{0, 4}, {4}, {4}},
        {{5, 0}, {0}, {0}},
        {{33, 17}, {17}, {17}},
        {{259, 2}, {2}, {2}}}},
      {"batch_norm without weight and bias",
       [](Operands x) { return batch_norm(x[0], Tensor(), Tensor()); },
       {{{7, 5}}, {{6, 16}}}},
      {"batch_norm with constant statistics",
       [](Operands x) {
         const auto constant = [&](double value) {
           return Tensor::full({x[0].size(1)}, value, DType::f64, x[0].device());
         };
         return batch_norm(x[0], x[1], x[2], {.mean = constant(0.5), .m2 = constant(3)}, 0.25);
       },
       {{{7, 5}, {5}, {5}}, {{1, 3}, {3}, {3}}, {{0, 4}, {4}, {4}}}},
      {"log_softmax",
       [](Operands x) { return log_softmax(x[0]); },
       {{{3, 5}}, {{1, 1}}, {{0, 5}}, {{4, 17}}, {{2, 33}}}},
      {"cross_entropy",
       [](Operands x) { return cross_entropy(x[0], labels_for(x[0])); },
       {{{3, 5}}, {{1, 1}}, {{0, 5}}, {{4, 17}}, {{33, 10}}}},
      {"mse", [](Operands x) { return mse(x[0], x[1]); }, {{{3, 5}, {3, 5}}, {{0}, {0}}, {{}, {}}}},
  };
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      OpCase matmul_case{
          fmt::format("matmul {} {}", ta ? "a^T" : "a", tb ? "b^T" : "b"),
          [=](Operands x) { return matmul(x[0], x[1], {.transpose_a = ta, .transpose_b = tb}); },
          {}};
      for (const auto& [n, k, m] :
           {std::array{3, 5, 4}, std::array{1, 1, 1}, std::array{0, 5, 4}, std::array{3, 0, 4},
            std::array{3, 5, 0}, std::array{17, 9, 33}})
        matmul_case.shapes.push_back(
            {ta ? Shape{k, n} : Shape{n, k}, tb ? Shape{m, k} : Shape{k, m}});
      table.push_back(matmul_case);
    }
  for (const OpCase& op : vocabulary_ops()) table.push_back(op);
  return table;
}

}  // namespace

const std::vector<OpCase>& op_table() {
  static const std::vector<OpCase> table = make_table();
  return table;
}

double device_tolerance(const OpCase& op) {
  const bool sums = op.shapes == pairs ||  // their gradients, where an operand is repeated
                    op.name.starts_with("matmul") || op.name.starts_with("linear") ||
                    op.name == "batch_norm" || op.name == "sum" || op.name == "mean";
  return sums ? 2e-5 : 4e-6;
}

std::vector<std::vector<Shape>> large_shapes(const OpCase& op) {
  if (op.shapes == pairs)
    return {{{301, 203}, {301, 203}}, {{301, 203}, {203}}, {{301, 1}, {1, 203}}, {{61'003}, {}}};
  if (op.shapes == singles) return {{{61'003}}, {{301, 203}}};
  if (op.name == "linear") return {{{65, 70}, {129, 70}, {129}}};
  if (op.name.starts_with("matmul a")) {  // its shapes go with its flags: the last, but larger
    const auto grown = [](const Shape& shape) {
      const auto side = [](std::int64_t n) { return n == 17 ? 65 : n == 9 ? 70 : 129; };
      return Shape{side(shape[0]), side(shape[1])};
    };
    return {{grown(op.shapes.back()[0]), grown(op.shapes.back()[1])}};
  }
  if (op.name == "log_softmax" || op.name == "cross_entropy") return {{{301, 203}}, {{3, 5000}}};
  return {};
}

std::string title(const OpCase& op, const std::vector<Shape>& shapes) {
  std::string text = op.name;
  for (const Shape& shape : shapes) text += " " + shape.to_string();
  return text;
}

std::vector<Tensor> results(const OpCase& op, const std::vector<Shape>& shapes, DType dtype,
                            Device device) {
  std::vector<Tensor> watched, all;
  Tape tape;
  for (const Tensor& x : operands(op, shapes, dtype, device)) watched.push_back(tape.watch(x));
  const Tensor y = op.function(watched);
  // Weighted: where only the sum counts, some gradients are zero whatever the kernels do.
  Tensor probe = Tensor::empty(y.shape(), dtype);
  for (std::int64_t i = 0; i < probe.numel(); ++i)
    visit_floating("probe", dtype, [&](auto zero) {
      using T = decltype(zero);
      probe.data<T>()[i] = static_cast<T>(1.5 + std::sin(1.0 + 2.3 * static_cast<double>(i)));
    });
  tape.backward(sum(y * probe.to(device)));
  all.push_back(y.detach());
  for (const Tensor& x : watched) all.push_back(tape.gradient(x));
  return all;
}

std::vector<Tensor> operands(const OpCase& op, const std::vector<Shape>& shapes, DType dtype,
                             Device device) {
  std::mt19937 random(17);
  std::vector<Tensor> result;
  for (const Shape& shape : shapes) {
    Tensor tensor = Tensor::empty(shape, dtype);
    visit_floating("operands", dtype, [&](auto zero) {
      for (auto& value : tensor.span<decltype(zero)>()) {
        double x = op.low + (op.high - op.low) * (random() / 4294967296.0);
        if (std::abs(x) < 0.05) x = std::copysign(0.05, x) + x;
        value = static_cast<decltype(zero)>(x);
      }
    });
    result.push_back(tensor.to(device));
  }
  return result;
}
