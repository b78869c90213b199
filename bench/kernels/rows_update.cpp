// Dropout, optimizer steps and folds: kernels/random.h, optimizer.h and tree_reduce.h.
#include <array>
#include <cmath>

#include "case.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/kernels/random.h"
#include "lockstep/kernels/tree_reduce.h"
#include "sizes.h"

namespace bench {
namespace {

using namespace lockstep;
using Inputs = const std::vector<Values>&;

constexpr double update_tolerance = 1e-5;
constexpr PhiloxState stream{.seed = 7, .offset = 0};

// --- Dropout -------------------------------------------------------------------------------------

/// In (0, 1]: what a 32-bit output stands for, (r + 1/2) / 2^32, rounded to f32 as draws.h says.
float unit(std::uint32_t word) { return static_cast<float>(word) * 0x1p-32f + 0x1p-33f; }

constexpr double p = 0.25;

double kept(std::int64_t i) {
  const std::int64_t block = i / 4;
  const PhiloxBlock four = philox_block(stream, block / philox_threads, block % philox_threads);
  return unit(four.words[i % 4]) < static_cast<float>(1 - p) ? 1 : 0;
}

Case dropout(const Size& size, Source& source) {
  const Shape shape{size.dims[0]};
  const Tensor x = source.normal(shape), out = source.empty(shape);
  const Tensor mask = source.empty(shape, DType::u8);
  return {.run = [=] { kernels::dropout(stream, x, p, out, mask); },
          .inputs = {x},
          .outputs = {{mask, [](Inputs, std::int64_t i) { return kept(i); }, 1, 0},
                      {out, [](Inputs in, std::int64_t i) { return in[0][i] * kept(i) / (1 - p); },
                       1, update_tolerance}}};
}

Case dropout_backward(const Size& size, Source& source) {
  const Shape shape{size.dims[0]};
  const Tensor dy = source.normal(shape), dx = source.empty(shape);
  const Tensor mask = source.empty(shape, DType::u8);
  kernels::dropout(stream, dy, p, dx, mask);
  const auto expected = [](Inputs in, std::int64_t i) { return in[0][i] * in[1][i] / (1 - p); };
  return {.run = [=] { kernels::dropout_backward(dy, mask, p, dx, false); },
          .inputs = {dy, mask},
          .outputs = {{dx, expected, 1, update_tolerance}}};
}

// --- Optimizers: one call for a model of 8 parameters in flat memory -----------------------------

constexpr std::int64_t parameters = 8;

/// Part i of a flat tensor that is cut into as many as there are parameters.
Tensor part(const Tensor& flat, std::int64_t i) {
  return flat.slice(flat.numel() * i / parameters, flat.numel() * (i + 1) / parameters);
}

Case sgd(const Size& size, Source& source) {
  const Shape shape{size.dims[0]};
  const Tensor value = source.normal(shape), gradient = source.normal(shape);
  const Tensor momentum = source.normal(shape);
  std::vector<kernels::SgdItem> items;
  for (std::int64_t i = 0; i < parameters; ++i)
    items.push_back({part(value, i), part(gradient, i), part(momentum, i)});
  const kernels::SgdConfig config{.lr = 0.01, .momentum = 0.9};
  const auto buffer = [](Inputs in, std::int64_t i) { return 0.9 * in[2][i] + in[1][i]; };
  const auto stepped = [=](Inputs in, std::int64_t i) { return in[0][i] - 0.01 * buffer(in, i); };
  return {
      .run = [=] { kernels::sgd_step(items, config); },
      .inputs = {value, gradient, momentum},
      .outputs = {{value, stepped, 1, update_tolerance}, {momentum, buffer, 1, update_tolerance}}};
}

Case adam(const Size& size, Source& source) {
  const Shape shape{size.dims[0]};
  const Tensor value = source.normal(shape), gradient = source.normal(shape);
  const Tensor mean = source.normal(shape), variance = source.uniform(shape, 0.5, 2);
  const Tensor steps = source.empty({parameters}, DType::i64);
  steps.fill(9);
  std::vector<kernels::AdamItem> items;
  for (std::int64_t i = 0; i < parameters; ++i)
    items.push_back({part(value, i), part(gradient, i), part(mean, i), part(variance, i),
                     steps.slice(i, i + 1)});
  const auto next_mean = [](Inputs in, std::int64_t i) { return 0.9 * in[2][i] + 0.1 * in[1][i]; };
  const auto next_variance = [](Inputs in, std::int64_t i) {
    return 0.999 * in[3][i] + 0.001 * in[1][i] * in[1][i];
  };
  const auto stepped = [=](Inputs in, std::int64_t i) {
    const double t = in[4][0] + 1;
    const double corrected = next_mean(in, i) / (1 - std::pow(0.9, t));
    const double deviation = std::sqrt(next_variance(in, i) / (1 - std::pow(0.999, t)));
    return in[0][i] - 0.01 * corrected / (deviation + 1e-8);
  };
  const auto counted = [](Inputs in, std::int64_t i) { return in[4][i] + 1; };
  return {.run = [=] { kernels::adam_step(items, {.lr = 0.01}); },
          .inputs = {value, gradient, mean, variance, steps},
          .outputs = {{value, stepped, 1, update_tolerance},
                      {mean, next_mean, 1, update_tolerance},
                      {variance, next_variance, 1, update_tolerance},
                      {steps, counted, 1, 0}}};
}

// --- Folds: contributions of several ranks into one ----------------------------------------------

template <std::size_t sources>
Case tree_reduce(const Size& size, Source& source) {
  const std::int64_t n = size.dims[0];
  std::vector<Tensor> inputs;
  std::array<const std::byte*, sources> from{};
  for (std::size_t k = 0; k < sources; ++k) {
    inputs.push_back(source.normal({n}));
    from[k] = inputs.back().raw();
  }
  const Tensor out = source.empty({n});
  const auto run = [=, device = source.device()] {
    const std::array<std::byte*, 1> to{out.raw()};
    kernels::tree_reduce(DType::f32, from, to, n, device);
  };
  const auto expected = [](Inputs in, std::int64_t i) {
    double total = 0;
    for (const Values& values : in) total += values[i];
    return total;
  };
  return {.run = run, .inputs = inputs, .outputs = {{out, expected, sources, update_tolerance}}};
}

}  // namespace

std::vector<Row> update_rows(Scale scale) {
  const std::vector<Size> sizes = flat(scale);
  return {{"dropout", sizes, 9, {}, dropout},
          {"dropout_backward", sizes, 9, {}, dropout_backward},
          {"sgd_step", sizes, 20, {}, sgd},
          {"adam_step", sizes, 28, {}, adam},
          {"tree_reduce_2", sizes, 12, {}, tree_reduce<2>},
          {"tree_reduce_8", sizes, 36, {}, tree_reduce<8>}};
}

}  // namespace bench
