#pragma once
/// Small models with data, and comparisons that may be made on any thread.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "support/expect.h"

namespace lockstep::test {

using dist::Communicator;
using dist::DistributedDataParallel;

inline Parameter scalar(const std::string& name, double value = 0) {
  return Parameter(Tensor::scalar(value, DType::f64), name);
}

/// The one element of a parameter's gradient; NaN if it has none.
inline double gradient_of(const Parameter& parameter) {
  return parameter.gradient().defined() ? parameter.gradient().item() : std::nan("");
}

/// A model with 26 parameters in f64.
struct Net : nn::Module {
  nn::Linear first{3, 4, true, DType::f64}, second{4, 2, true, DType::f64};
  Tensor forward(const Tensor& x) override { return second(tanh(first(x))); }
  void visit(nn::Visitor& p) override {
    p("first", first);
    p("second", second);
  }
};

/// Net with a batch normalization between its layers, which takes the place of the first one's
/// bias.
struct NormalizedNet : nn::Module {
  nn::Linear first{3, 4, false, DType::f64}, second{4, 2, true, DType::f64};
  nn::BatchNorm norm{4, {.dtype = DType::f64}};
  Tensor forward(const Tensor& x) override { return second(tanh(norm(first(x)))); }
  void visit(nn::Visitor& p) override {
    p("first", first);
    p("norm", norm);
    p("second", second);
  }
};

/// Rows [begin, end) of a fixed table of `columns` columns, no two of them alike.
inline Tensor rows(std::int64_t begin, std::int64_t end, std::int64_t columns = 3) {
  const Tensor table = Tensor::empty({end - begin, columns}, DType::f64);
  for (std::int64_t i = 0; i < table.numel(); ++i)
    table.data<double>()[i] = std::sin(1.3 * static_cast<double>(begin * columns + i + 1));
  return table;
}

/// The mean loss of a model over rows [begin, end).
inline Tensor loss_of(nn::Module& model, std::int64_t begin, std::int64_t end) {
  return nn::mse(model(rows(begin, end)), rows(begin, end, 2));
}

inline double distance(const Tensor& a, const Tensor& b) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    worst = std::fmax(worst, std::abs(a.data<double>()[i] - b.data<double>()[i]));
  return worst;
}

/// Both models' parameters have the same gradients, or both have none.
inline void expect_same_gradients(nn::Module& model, nn::Module& expected) {
  const auto mine = model.parameters(), right = expected.parameters();
  for (std::size_t k = 0; k < right.size(); ++k) {
    const Tensor a = mine[k].gradient(), b = right[k].gradient();
    expect(a.defined() == b.defined(), "'{}': {} and should {}", mine[k].name(), a.defined(),
           b.defined());
    if (a.defined())
      expect(distance(a, b) < 1e-14, "'{}' is off by {}", mine[k].name(), distance(a, b));
  }
}

inline void expect_same_values(nn::Module& model, nn::Module& expected, double tolerance) {
  const auto mine = model.state_dict(), right = expected.state_dict();
  for (const auto& [name, value] : right)
    if (value.dtype() == DType::f64)
      expect(distance(mine.at(name), value) < tolerance, "'{}' is off by {}", name,
             distance(mine.at(name), value));
}

/// Bit for bit. Collective.
inline bool replicas_agree(Communicator& communicator, const std::vector<Parameter>& parameters) {
  const auto digests = dist::gather_text(communicator, parameter_digest(parameters));
  return std::ranges::count(digests, digests[0]) == communicator.size();
}

}  // namespace lockstep::test
