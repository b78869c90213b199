#include "lockstep/autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/tape.h"

namespace lockstep {
namespace {

// Weights without pattern, so that errors in two elements do not cancel.
Tensor probe_for(const Tensor& output) {
  Tensor probe = Tensor::empty(output.shape(), DType::f64);
  for (std::int64_t i = 0; i < probe.numel(); ++i)
    probe.data<double>()[i] = std::sin(1.0 + 2.3 * static_cast<double>(i));
  return probe.to(output.device());
}

// sum p (above - below): differences first, for most elements of y do not change at all.
double contracted_difference(const Tensor& above, const Tensor& below) {
  const auto probe = probe_for(above).to_vector<double>();
  const auto high = above.to_vector<double>(), low = below.to_vector<double>();
  double total = 0;
  for (std::size_t i = 0; i < probe.size(); ++i) total += probe[i] * (high[i] - low[i]);
  return total;
}

}  // namespace

GradcheckResult gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          double step) {
  std::vector<Tensor> gradients;
  {
    Tape tape;
    std::vector<Tensor> watched;
    for (const Tensor& input : inputs) {
      check<DTypeError>(input.dtype() == DType::f64, "[gradcheck] takes f64, got {}",
                        input.dtype());
      watched.push_back(tape.watch(input));
    }
    const Tensor y = function(watched);
    tape.backward(sum(y * probe_for(y)));
    for (const Tensor& input : watched) gradients.push_back(tape.gradient(input));
  }
  GradcheckResult result;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const std::vector<double> recorded =
        gradients[k].defined() ? gradients[k].to_vector<double>()
                               : std::vector<double>(static_cast<std::size_t>(inputs[k].numel()));
    const std::vector<double> values = inputs[k].to_vector<double>();
    const Tensor flat = inputs[k].view({inputs[k].numel()});
    for (std::size_t i = 0; i < recorded.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const auto set = [&](double x) { flat.slice(at, at + 1).fill(x); };
      const double kept = values[i];
      const double h = step * std::max(1.0, std::abs(kept));
      Tensor above, below;
      try {
        set(kept + h);
        above = function(inputs).clone();
        set(kept - h);
        below = function(inputs).clone();
      } catch (...) {
        set(kept);
        throw;
      }
      set(kept);
      const double numeric = contracted_difference(above, below) / (2 * h);
      const double scale = std::max({1.0, std::abs(recorded[i]), std::abs(numeric)});
      const double error = std::abs(recorded[i] - numeric) / scale;
      if (std::isnan(result.worst) || error <= result.worst) continue;  // the first NaN stays
      result.worst = error;
      result.where = fmt::format("input {} element {}: recorded {}, numeric {} (outputs weighted)",
                                 k, i, recorded[i], numeric);
    }
  }
  return result;
}

}  // namespace lockstep
