// Kernels that look along rows or columns: kernels/reduce.h and loss.h.
#include <cmath>

#include "case.h"
#include "lockstep/kernels/loss.h"
#include "lockstep/kernels/reduce.h"
#include "sizes.h"

namespace bench {
namespace {

using namespace lockstep;
using Inputs = const std::vector<Values>&;
using Prepare = std::function<Case(const Size&, Source&)>;

constexpr double reduce_tolerance = 1e-5;

Row row(std::string name, std::vector<Size> sizes, double bytes, Prepare prepare) {
  return {std::move(name), std::move(sizes), bytes, {}, std::move(prepare)};
}

// --- Sums ----------------------------------------------------------------------------------------

/// Numbers of one sign, so that a sum is about as large as what is summed. The peers' sums of 2^26
/// elements lose some digits.
constexpr double sum_tolerance = 2e-4;

Case sum(const Size& size, Source& source) {
  const Tensor x = source.uniform({size.dims[0]}, 0, 1), out = source.empty({});
  const auto expected = [](Inputs in, std::int64_t) {
    double total = 0;
    for (std::int64_t i = 0; i < in[0].size(); ++i) total += in[0][i];
    return total;
  };
  return {.run = [=] { kernels::sum(x, out); },
          .inputs = {x},
          .outputs = {{out, expected, x.numel(), sum_tolerance}}};
}

Case sum_rows(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0], c = size.dims[1];
  const Tensor x = source.uniform({n, c}, 0, 1), out = source.empty({c});
  const auto expected = [n, c](Inputs in, std::int64_t j) {
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += in[0][i * c + j];
    return total;
  };
  return {.run = [=] { kernels::sum_rows(x, out); },
          .inputs = {x},
          .outputs = {{out, expected, n, sum_tolerance}}};
}

Case sum_cols(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0], c = size.dims[1];
  const Tensor x = source.uniform({n, c}, 0, 1), out = source.empty({n});
  const auto expected = [c](Inputs in, std::int64_t i) {
    double total = 0;
    for (std::int64_t j = 0; j < c; ++j) total += in[0][i * c + j];
    return total;
  };
  return {.run = [=] { kernels::sum_cols(x, out); },
          .inputs = {x},
          .outputs = {{out, expected, c, sum_tolerance}}};
}

/// (8, N / 8, C) -> (1, N / 8, 1): neither of the above.
Case sum_to(const Size& size, Source& source) {
  const std::int64_t outer = 8, middle = size.dims[0] / outer, c = size.dims[1];
  const Tensor x = source.uniform({outer, middle, c}, 0, 1), out = source.empty({1, middle, 1});
  const auto expected = [=](Inputs in, std::int64_t m) {
    double total = 0;
    for (std::int64_t k = 0; k < outer; ++k)
      for (std::int64_t j = 0; j < c; ++j) total += in[0][(k * middle + m) * c + j];
    return total;
  };
  return {.run = [=] { kernels::sum_to(x, out); },
          .inputs = {x},
          .outputs = {{out, expected, outer * c, sum_tolerance}}};
}

Case argmax(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0], c = size.dims[1];
  const Tensor x = source.normal({n, c}), out = source.empty({n}, DType::i64);
  const auto expected = [c](Inputs in, std::int64_t i) {
    std::int64_t best = 0;
    for (std::int64_t j = 1; j < c; ++j)
      if (in[0][i * c + j] > in[0][i * c + best]) best = j;
    return static_cast<double>(best);
  };
  return {
      .run = [=] { kernels::argmax(x, out); }, .inputs = {x}, .outputs = {{out, expected, c, 0}}};
}

/// One infinity among the numbers, in their middle.
Case find_nonfinite(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0];
  const Tensor x = source.normal({n}), flag = source.empty({}, DType::i32);
  x.slice(n / 2, n / 2 + 1).fill(INFINITY);
  flag.fill_zero();
  const auto expected = [](Inputs, std::int64_t) { return 1.0; };
  return {.run = [=] { kernels::find_nonfinite(x, flag); },
          .inputs = {x, flag},
          .outputs = {{flag, expected, 1, 0}}};
}

// --- Softmax and losses --------------------------------------------------------------------------

/// log sum_j exp(x_ij). The inputs are small enough to do without the maximum.
double log_sum_exp(const Values& x, std::int64_t i, std::int64_t c) {
  double total = 0;
  for (std::int64_t j = 0; j < c; ++j) total += std::exp(x[i * c + j]);
  return std::log(total);
}

Case softmax(bool logarithm, const Size& size, Source& source) {
  const std::int64_t n = size.dims[0], c = size.dims[1];
  const Tensor x = source.normal({n, c}), y = source.empty({n, c});
  const auto expected = [=](Inputs in, std::int64_t i) {
    const double log_y = in[0][i] - log_sum_exp(in[0], i / c, c);
    return logarithm ? log_y : std::exp(log_y);
  };
  return {.run = [=] { logarithm ? kernels::log_softmax(x, y) : kernels::softmax(x, y); },
          .inputs = {x},
          .outputs = {{y, expected, c, reduce_tolerance}}};
}

Case log_softmax_backward(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0], c = size.dims[1];
  const Tensor dy = source.normal({n, c}), x = source.normal({n, c});
  const Tensor y = source.empty({n, c}), dx = source.empty({n, c});
  kernels::log_softmax(x, y);
  const auto expected = [c](Inputs in, std::int64_t i) {
    double total = 0;
    for (std::int64_t j = 0; j < c; ++j) total += in[0][i / c * c + j];
    return in[0][i] - std::exp(in[1][i]) * total;
  };
  return {.run = [=] { kernels::log_softmax_backward(dy, y, dx, false); },
          .inputs = {dy, y},
          .outputs = {{dx, expected, c, reduce_tolerance}}};
}

double mean_loss(Inputs in, std::int64_t n, std::int64_t c) {
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i)
    total += log_sum_exp(in[0], i, c) - in[0][i * c + static_cast<std::int64_t>(in[1][i])];
  return total / static_cast<double>(n);
}

/// softmax - onehot.
double loss_gradient(Inputs in, std::int64_t i, std::int64_t c) {
  const bool is_label = static_cast<std::int64_t>(in[1][i / c]) == i % c;
  return std::exp(in[0][i] - log_sum_exp(in[0], i / c, c)) - (is_label ? 1 : 0);
}

/// `whole`: the gradient of the logits as well, which PyTorch's forward and backward amount to.
Case cross_entropy(bool whole, const Size& size, Source& source) {
  const std::int64_t n = size.dims[0], c = size.dims[1];
  const Tensor logits = source.normal({n, c}), labels = source.labels(n, c);
  const Tensor loss = source.empty({}), saved = source.empty({n, c}), one = source.empty({});
  one.fill(1);
  const double scale = whole ? 1 / static_cast<double>(n) : 1;
  const auto run = [=] {
    kernels::cross_entropy(logits, labels, loss, saved);
    if (whole) kernels::cross_entropy_backward(one, saved, saved, false);
  };
  return {.run = run,
          .inputs = {logits, labels},
          .outputs = {
              {loss, [=](Inputs in, std::int64_t) { return mean_loss(in, n, c); }, n * c,
               reduce_tolerance},
              {saved, [=](Inputs in, std::int64_t i) { return scale * loss_gradient(in, i, c); }, c,
               reduce_tolerance}}};
}

Case cross_entropy_backward(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0], c = size.dims[1];
  const Tensor saved = source.normal({n, c}), dloss = source.normal({});
  const Tensor dlogits = source.empty({n, c});
  const auto expected = [n](Inputs in, std::int64_t i) {
    return in[0][0] / static_cast<double>(n) * in[1][i];
  };
  return {.run = [=] { kernels::cross_entropy_backward(dloss, saved, dlogits, false); },
          .inputs = {dloss, saved},
          .outputs = {{dlogits, expected, 1, reduce_tolerance}}};
}

Case mse(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0];
  const Tensor x = source.normal({n}), y = source.normal({n}), loss = source.empty({});
  const auto expected = [n](Inputs in, std::int64_t) {
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += (in[0][i] - in[1][i]) * (in[0][i] - in[1][i]);
    return total / static_cast<double>(n);
  };
  return {.run = [=] { kernels::mse(x, y, loss); },
          .inputs = {x, y},
          .outputs = {{loss, expected, n, sum_tolerance}}};
}

Case mse_backward(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0];
  const Tensor dloss = source.normal({}), x = source.normal({n}), y = source.normal({n});
  const Tensor dx = source.empty({n});
  const auto expected = [n](Inputs in, std::int64_t i) {
    return in[0][0] * 2 * (in[1][i] - in[2][i]) / static_cast<double>(n);
  };
  return {.run = [=] { kernels::mse_backward(dloss, x, y, dx, false); },
          .inputs = {dloss, x, y},
          .outputs = {{dx, expected, 1, reduce_tolerance}}};
}

}  // namespace

std::vector<Row> reduce_rows(Scale scale) {
  const auto with = [](auto function, bool flag) -> Prepare {
    return [=](const Size& size, Source& source) { return function(flag, size, source); };
  };
  return {row("sum", flat(scale), 4, sum),
          row("sum_rows", matrices(scale), 4, sum_rows),
          row("sum_cols", matrices(scale), 4, sum_cols),
          row("sum_to", matrices(scale), 4, sum_to),
          row("argmax", matrices(scale), 4, argmax),
          row("find_nonfinite", flat(scale), 4, find_nonfinite),
          row("softmax", logits(scale), 8, with(softmax, false)),
          row("log_softmax", logits(scale), 8, with(softmax, true)),
          row("log_softmax_backward", logits(scale), 12, log_softmax_backward),
          row("cross_entropy", logits(scale), 8, with(cross_entropy, false)),
          row("cross_entropy_backward", logits(scale), 8, cross_entropy_backward),
          row("cross_entropy_both", logits(scale), 8, with(cross_entropy, true)),
          row("mse", flat(scale), 8, mse),
          row("mse_backward", flat(scale), 12, mse_backward)};
}

}  // namespace bench
