// LaneRecord::OtherGradients: while it lives the parameters have no gradients. Afterwards all is as
// it was: slot, state, the lanes that wait, observers.

#include <doctest/doctest.h>

#include "lockstep/autograd/lanes/lane_record.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/lanes.h"

using namespace lockstep;

namespace {

struct CountsReady final : GradientObserver {
  int times = 0;
  void gradient_ready(const Parameter&) override { ++times; }
};

/// A batch of 8 rows in 4 lanes.
struct FourLanes {
  const LaneScope scope{std::make_shared<const Lanes>(8, 4, Shard{})};
  const Tensor x = of_samples(Tensor::ones({8, 3}));
  Tensor loss(const Parameter& w, double factor) const { return mean(matmul(x, w) * factor); }
  void backward(const Parameter& w, double factor, bool sync) const {
    Tape tape;
    tape.backward(loss(w, factor), Weight{8, 8}, {.sync = sync});
  }
};

}  // namespace

TEST_CASE("aside: everything of a gradient is put aside, and comes back as it was") {
  for (const GradientState state :
       {GradientState::nothing, GradientState::local, GradientState::synchronized}) {
    const Parameter w(Tensor::full({3, 2}, 0.5), "w"), v(Tensor::full({3, 2}, 2), "v");
    CountsReady observer;
    const Observation observation = w.observe(observer);
    w.gradient_slot().fill(3);
    w.set_gradient_state(state);
    const Tensor slot = w.gradient_slot();
    {
      const LaneRecord::OtherGradients aside({w});
      CHECK(w.gradient_state() == GradientState::nothing);
      for (int time = 0; time < 2; ++time) {
        Tape tape;
        tape.backward(sum(w * v));
      }
      CHECK(w.gradient().to_vector<float>() == std::vector<float>(6, 4));
      CHECK(w.gradient_state() == GradientState::local);
      CHECK(observer.times == 0);
      CHECK(v.gradient().to_vector<float>() == std::vector<float>(6, 1));  // is not aside
    }
    CHECK(w.gradient_state() == state);
    CHECK(w.gradient_slot().storage() == slot.storage());
    CHECK(w.gradient_slot().to_vector<float>() == std::vector<float>(6, 3));
    w.set_gradient_state(GradientState::local);
    Tape tape;
    tape.backward(sum(w * v));
    CHECK(observer.times == 1);
    CHECK(w.gradient().to_vector<float>() == std::vector<float>(6, 5));
  }
}

TEST_CASE("aside: lanes that wait in a window are those of before, whatever is done meanwhile") {
  const FourLanes batch;
  const Parameter plain(Tensor::full({3, 2}, 0.5), "w"), w(Tensor::full({3, 2}, 0.5), "w");
  for (const Parameter& p : {plain, w}) {
    batch.backward(p, 1, false);
    if (p.id() == w.id()) {
      const LaneRecord::OtherGradients aside({w});
      batch.backward(w, 100, true);
      batch.backward(w, 100, true);
    }
    batch.backward(p, 10, true);
  }
  CHECK(w.gradient().to_vector<float>() == plain.gradient().to_vector<float>());
  CHECK(w.gradient_state() == plain.gradient_state());
}

TEST_CASE("aside: what is aside already is refused, and stays there") {
  const Parameter w(Tensor::ones({2}), "w"), v(Tensor::ones({2}), "v");
  w.gradient_slot().fill(3);
  w.set_gradient_state(GradientState::local);
  {
    const LaneRecord::OtherGradients outer({w});
    CHECK_THROWS_WITH_AS(LaneRecord::OtherGradients({v, w}),
                         doctest::Contains("is put aside already"), StateError);
    CHECK(w.gradient_state() == GradientState::nothing);
    { const LaneRecord::OtherGradients other({v}); }
    CHECK(w.gradient_state() == GradientState::nothing);
  }
  CHECK(w.gradient().to_vector<float>() == std::vector<float>(2, 3));
}
