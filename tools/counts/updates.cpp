// Random numbers, optimizer steps, clipping, fingerprints, folds.
#include <array>

#include "lockstep/kernels/clip.h"
#include "lockstep/kernels/fingerprint.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/kernels/random.h"
#include "lockstep/kernels/tree_reduce.h"
#include "lockstep/tools/counts/problem.h"

namespace lockstep::counts {
namespace {

using namespace kernels;

constexpr std::int64_t updated = 1 << 16;
constexpr const char* updated_size = "65536";

std::vector<Problem> random_problems() {
  constexpr const char* source = "kernels/cuda/random.cu";
  const auto forward = [](Device device) {
    Tensors t(device);
    const Tensor x = t.read({updated}), out = t.written({updated}),
                 mask = t.written({updated}, DType::u8);
    return t.work([=] { dropout({.seed = 7, .offset = 0}, x, 0.25, out, mask); });
  };
  const auto backward = [](Device device) {
    Tensors t(device);
    const Tensor dy = t.read({updated}), mask = t.read({updated}, DType::u8),
                 dx = t.written({updated});
    return t.work([=] { dropout_backward(dy, mask, 0.25, dx, false); });
  };
  return {{"dropout", updated_size, source, forward},
          {"dropout_backward", updated_size, source, backward}};
}

std::vector<Problem> optimizers() {
  constexpr const char* source = "kernels/cuda/optimizer.cu";
  const auto sgd = [](Device device) {
    Tensors t(device);
    const SgdItem item{
        .value = t.both({updated}), .gradient = t.read({updated}), .momentum = t.both({updated})};
    return t.work([=] { sgd_step({&item, 1}, {.lr = 0.01, .momentum = 0.9}); });
  };
  const auto adam = [](Device device) {
    Tensors t(device);
    const AdamItem item{.value = t.both({updated}),
                        .gradient = t.read({updated}),
                        .mean = t.both({updated}),
                        .variance = t.both({updated}),
                        .step = t.both({1}, DType::i64)};
    return t.work([=] { adam_step({&item, 1}, {.lr = 0.01}); });
  };
  const auto rmsprop = [](Device device) {
    Tensors t(device);
    const RmspropItem item{.value = t.both({updated}),
                           .gradient = t.read({updated}),
                           .square = t.both({updated}),
                           .mean = {},
                           .momentum = {}};
    return t.work([=] { rmsprop_step({&item, 1}, {.lr = 0.01}); });
  };
  const auto lion = [](Device device) {
    Tensors t(device);
    const LionItem item{
        .value = t.both({updated}), .gradient = t.read({updated}), .momentum = t.both({updated})};
    return t.work([=] { lion_step({&item, 1}, {.lr = 0.01}); });
  };
  const auto fingerprint = [](Device device) {
    Tensors t(device);
    const Tensor value = t.read({updated}), sum = t.both({2}, DType::i64);
    return t.work([=] { add_fingerprint({&value, 1}, {.sum = &sum}); });
  };
  return {{"sgd_step", updated_size, source, sgd},
          {"adam_step", updated_size, source, adam},
          {"rmsprop_step", updated_size, source, rmsprop},
          {"lion_step", updated_size, source, lion},
          {"fingerprint", updated_size, source, fingerprint}};
}

std::vector<Problem> clipping() {
  constexpr const char* source = "kernels/cuda/clip.cu";
  const auto norm = [](Device device) {
    Tensors t(device);
    const Tensor gradient = t.read({updated}), out = t.written({}, DType::f64);
    return t.work([=] { global_norm({&gradient, 1}, out); });
  };
  const auto clip = [](Device device) {
    Tensors t(device);
    const Tensor gradient = t.both({updated}), limit = Tensor::ones({}, DType::f64).to(device);
    return t.work([=] { clip_by_norm({&gradient, 1}, limit, 0.5); });
  };
  return {{"global_norm", updated_size, source, norm},
          {"clip_by_norm", updated_size, source, clip}};
}

template <std::size_t sources>
Work fold(Device device) {
  Tensors t(device);
  std::array<Tensor, sources> inputs;
  for (Tensor& input : inputs) input = t.read({updated});
  const Tensor out = t.written({updated});
  return t.work([=] {
    std::array<const std::byte*, sources> from;
    for (std::size_t i = 0; i < sources; ++i) from[i] = inputs[i].raw();
    std::byte* const to = out.raw();
    tree_reduce(DType::f32, from, {&to, 1}, updated, out.device());
  });
}

std::vector<Problem> folds() {
  constexpr const char* source = "kernels/cuda/tree_reduce.cu";
  return {{"tree_reduce_2", updated_size, source, fold<2>},
          {"tree_reduce_8", updated_size, source, fold<8>}};
}

}  // namespace

std::vector<Problem> update_problems() {
  std::vector<Problem> all;
  for (const auto part : {random_problems, optimizers, clipping, folds})
    for (Problem& problem : part()) all.push_back(std::move(problem));
  return all;
}

}  // namespace lockstep::counts
