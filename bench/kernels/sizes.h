#pragma once
/// The sizes at which rows of one kind are timed. The large ones have 2^26 elements (256 MiB in
/// f32) on a GPU and 2^24 on a processor's core; the small ones show what a call costs.

#include "lockstep/bench/kernels/case.h"

namespace bench {

/// Any number of elements.
inline std::vector<Size> flat(Scale scale) {
  if (scale.quick) return {{{4099}}};
  if (!scale.on_gpu) return {{{1 << 16}}, {{1 << 24}}};
  return {{{1 << 20}}, {{1 << 26}}};
}

/// Many short rows, and few long ones.
inline std::vector<Size> matrices(Scale scale) {
  if (scale.quick) return {{{37, 101}}};
  if (!scale.on_gpu) return {{{1024, 64}}, {{16384, 1024}}, {{512, 32768}}};
  return {{{1024, 1024}}, {{65536, 1024}}, {{2048, 32768}}};
}

/// The same, and the logits of a small classifier.
inline std::vector<Size> logits(Scale scale) {
  std::vector<Size> result = matrices(scale);
  if (!scale.quick) result.insert(result.begin(), Size{{128, 10}});
  return result;
}

/// Products of (m, k) and (k, n): squares.
inline std::vector<Size> squares(Scale scale) {
  if (scale.quick) return {{{65, 65, 65}}};
  if (!scale.on_gpu) return {{{128, 128, 128}}, {{512, 512, 512}}, {{1024, 1024, 1024}}};
  return {{{1024, 1024, 1024}}, {{2048, 2048, 2048}}, {{4096, 4096, 4096}}, {{8192, 8192, 8192}}};
}

/// The first hidden layer's of an MLP 784-512-256-10, 128 samples: forward, the gradient of the
/// weights, the gradient of what the second layer reads.
inline std::vector<Size> layers(Scale scale) {
  if (scale.quick) return {{{33, 65, 47}, false, true}, {{33, 65, 47}, true, false}};
  return {{{128, 512, 784}, false, true}, {{512, 784, 128}, true, false}, {{128, 512, 256}}};
}

/// Layers of width x width and large squares: what a GPU's products must be cut for in many ways.
/// Forward, the gradient of the weights, the gradient of the input.
inline std::vector<Size> trained(Scale scale) {
  if (scale.quick) return layers(scale);
  std::vector<Size> result;
  for (const std::int64_t batch : {128, 1024, 8192})
    for (const std::int64_t width : {256, 1024, 4096}) {
      result.push_back({{batch, width, width}, false, true});
      result.push_back({{width, width, batch}, true, false});
      result.push_back({{batch, width, width}});
    }
  result.push_back({{2048, 2048, 2048}});
  result.push_back({{8192, 8192, 8192}});
  return result;
}

/// All layers of three MLPs: forward, the gradient of the weights, the gradient of the input.
inline std::vector<Size> networks(Scale scale) {
  if (scale.quick) return {{{33, 65, 47}, false, true}, {{65, 47, 33}, true}, {{33, 47, 65}}};
  struct Network {
    std::int64_t batch;
    std::vector<std::int64_t> layers;
  };
  std::vector<Size> result;
  for (const auto& [batch, layers] :
       {Network{32, {64, 128, 64, 10}}, {128, {784, 512, 256, 10}}, {128, {1024, 2048, 2048, 10}}})
    for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
      const std::int64_t in = layers[i], out = layers[i + 1];
      result.push_back({{batch, out, in}, false, true});
      result.push_back({{out, in, batch}, true});
      result.push_back({{batch, in, out}});
    }
  return result;
}

}  // namespace bench
