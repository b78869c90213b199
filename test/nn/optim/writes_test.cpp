// What the library writes between forward and backward, into what forward has saved, is an error.

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace own_writes {

/// A backward of `loss` after `write` says that an operand was changed.
void check_noticed(const std::string& what, const std::function<Tensor()>& loss,
                   const std::function<void()>& write) {
  CAPTURE(what);
  Tape tape;
  const Tensor recorded = loss();
  write();
  CHECK_THROWS_WITH_AS(tape.backward(recorded), doctest::Contains("was changed in place"),
                       StateError);
}

TEST_CASE("writes of the library itself are noticed in backward") {
  const Parameter w(Tensor::from({1.F, 2.F}), "w"), v(Tensor::from({3.F, 4.F}), "v");
  const auto fill_gradient = [&] {
    w.zero_grad();
    Tape tape;
    tape.backward(sum(w * Tensor::from({10.F, 20.F})));
  };
  const auto with_gradient = [&] { return sum(v * w.gradient().detach()); };
  fill_gradient();
  check_noticed("clip_grad_norm", with_gradient, [&] { optim::clip_grad_norm({w}, 1); });
  fill_gradient();
  check_noticed("clip_grad_value", with_gradient, [&] { optim::clip_grad_value({w}, 1); });
  fill_gradient();
  check_noticed("unscale", with_gradient, [&] {
    optim::SGD optimizer({w}, {.lr = 0.1});
    optim::GradScaler scaler;
    scaler.unscale(optimizer);
  });
  fill_gradient();
  check_noticed("backward", with_gradient, fill_gradient);

  nn::BatchNorm norm(2);
  const Tensor x = Tensor::from({{1.F, 2.F}, {5.F, 3.F}});
  check_noticed(
      "running_mean", [&] { return mse(v, norm.running_mean); }, [&] { (void)norm(x); });

  optim::Ema ema({w}, 0.5);
  w.value() += 1.0;
  check_noticed(
      "Ema", [&] { return mse(v, ema.state_dict().at("w")); }, [&] { ema.update(); });
}

// The statistics that were given are constants: so they may not change either.
TEST_CASE("given statistics of batch_norm: neither learned nor changed") {
  const Tensor x = Tensor::from({{1.0, 2.0}, {5.0, 3.0}, {0.0, -1.0}});
  const Parameter w(Tensor::from({1.0, 2.0}), "w"), b(Tensor::zeros({2}, DType::f64), "b");
  BatchStatistics given{
      .mean = Tensor::from({1.0, 1.0}), .m2 = Tensor::from({2.0, 3.0}), .count = 3};
  check_noticed(
      "statistics", [&] { return sum(batch_norm(x, w, b, given, 1e-5)); },
      [&] { given.mean.fill(5); });
  Tape tape;
  given.mean = w;
  CHECK_THROWS_WITH_AS(batch_norm(x, w, b, given, 1e-5),
                       doctest::Contains("no gradient flows into given statistics"), StateError);
}

TEST_CASE("a dataset of what wants a gradient is refused") {
  const Parameter w(Tensor::ones({3, 2}), "w");
  CHECK_THROWS_WITH_AS(data::TensorDataset({{"x", w}}), doctest::Contains("wants a gradient"),
                       DataError);
  CHECK_NOTHROW(data::TensorDataset({{"x", w.value()}}));
}

TEST_CASE("a state that cannot be loaded changes nothing") {
  nn::Sequential model{nn::Linear(2, 2)};
  const nn::StateDict before = [&] {
    nn::StateDict copy;
    for (const auto& [name, value] : model.state_dict()) copy.emplace(name, value.clone());
    return copy;
  }();
  const Parameter p(Tensor::ones({2, 2}), "p");
  Tape tape;
  for (const Tensor& bad : {p * 2.0, Tensor(p), Tensor()}) {
    nn::StateDict state{{"0.bias", Tensor::full({2}, 7)}, {"0.weight", bad}};
    CHECK_THROWS_WITH_AS(model.load_state_dict(state), doctest::Contains("'0.weight'"), StateError);
    for (const auto& [name, value] : model.state_dict())
      CHECK(value.to_vector<float>() == before.at(name).to_vector<float>());
  }
}

}  // namespace own_writes
