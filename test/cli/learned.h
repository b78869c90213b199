#pragma once
/// What the test of the README's program adds to it: a last line that tells what it has learned.

#include <fmt/core.h>

#include "lockstep/kernels/reduce.h"
#include "lockstep/lockstep.h"

namespace lockstep::test {

/// Prints the part of the test set that is classified rightly, and the parameters' digest, in one
/// write.
inline void print_learned(nn::Module& model, const data::TensorDataset& set) {
  const Tensor guess = Tensor::empty({set.size()}, DType::i64);
  kernels::argmax(model(set["x"]), guess);
  const auto guesses = guess.to_vector<std::int64_t>(), labels = set["y"].to_vector<std::int64_t>();
  double right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += guesses[i] == labels[i];
  fmt::print("{}\n",
             fmt::format("accuracy={:.4f} digest={}", right / static_cast<double>(set.size()),
                         parameter_digest(model.parameters())));
}

}  // namespace lockstep::test
