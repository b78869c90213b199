// What docs/from_pytorch.md lists as refused here, and taken by PyTorch.

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"

using namespace lockstep;

TEST_CASE("refused: squeeze of a dimension that is not 1; without a dimension it leaves it") {
  const Tensor x = Tensor::zeros({2, 1, 3});
  CHECK(squeeze(x, 1).shape() == Shape{2, 3});
  CHECK(squeeze(x).shape() == Shape{2, 3});
  CHECK(squeeze(Tensor::zeros({2, 3})).shape() == Shape{2, 3});
  for (const int dim : {0, 2, -1, -3})
    CHECK_THROWS_WITH_AS(
        squeeze(x, dim),
        fmt::format("[squeeze] dimension {} of shape (2, 1, 3) is not 1", dim).c_str(), ShapeError);
}

TEST_CASE("refused: clamp to a range that is none") {
  const Tensor x = Tensor::from({0.0f, 5.0f});
  const double nan = std::nan("");
  CHECK_THROWS_WITH_AS(clamp(x, 3, 1), "[clamp] from 3 to 1", UsageError);
  CHECK_THROWS_AS(clamp(x, nan, 1), UsageError);
  CHECK_THROWS_AS(clamp(x, 0, nan), UsageError);
  CHECK(clamp(x, 1, 1).to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("refused: losses and lerp of whole numbers, by name") {
  for (const DType dtype : {DType::u8, DType::i32, DType::i64}) {
    const Tensor x = Tensor::ones({3}, dtype), y = Tensor::full({3}, 2, dtype);
    const auto refused = [&](const char* name, const auto& f) {
      const std::string text = fmt::format("[{}] takes f32 or f64, got {}", name, dtype);
      CHECK_THROWS_WITH_AS(f(), text.c_str(), DTypeError);
    };
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      refused("mse", [&] { return mse(x, y, reduction); });
      refused("l1", [&] { return l1(x, y, reduction); });
      refused("huber", [&] { return huber(x, y, 1, reduction); });
      refused("bce_with_logits", [&] { return bce_with_logits(x, y, reduction); });
    }
    refused("lerp", [&] { return lerp(x, y, 1); });
  }
}

TEST_CASE("refused: cat of several dtypes, and with an empty tensor of another shape") {
  const Tensor x = Tensor::zeros({2, 3});
  CHECK_THROWS_WITH_AS(cat({x, Tensor::zeros({2, 3}, DType::f64)}),
                       doctest::Contains("cast(tensor, dtype) makes them alike"), DTypeError);
  CHECK_THROWS_WITH_AS(cat({x, Tensor::zeros({0})}),
                       "[cat] (2, 3) and (0,) differ beside dimension 0", ShapeError);
  CHECK(cat({x, Tensor::zeros({0, 3})}).shape() == Shape{2, 3});
}
