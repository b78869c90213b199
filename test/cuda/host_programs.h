#pragma once
/// Programs that are run twice, with their step recorded and as it is: what they see is the same,
/// or an error has told it.

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/lockstep.h"
#include "support/device.h"

namespace lockstep::test::host_programs {

inline Tensor full(double value) { return Tensor::full({3}, value, DType::f32, test_device()); }

/// A program that has made its state: its step, and what it does around step i.
struct Program {
  std::function<void()> step;
  std::function<void(int)> before = [](int) {};
  std::function<void(std::vector<float>&)> after;
};

struct Seen {
  std::vector<float> values;
  int replays = 0;
};

inline Seen run(const std::function<Program()>& make, bool recorded, int steps = 10) {
  const Program p = make();
  StepGraph graph(p.step, test_device());
  Seen seen;
  for (int i = 0; i < steps; ++i) {
    p.before(i);
    if (recorded)
      seen.replays += graph();
    else
      p.step();
    p.after(seen.values);
  }
  return seen;
}

/// At least `replays` of them, where steps can be recorded.
inline void check_same(const std::function<Program()>& make, int replays = 1) {
  const Seen recorded = run(make, true);
  CHECK(recorded.values == run(make, false).values);
  if (!on_cpu()) CHECK(recorded.replays >= replays);
}

/// The recording is, by an error that says `message`; afterwards the step runs as it is.
inline void check_refused(const std::function<void()>& step, const char* message) {
  CAPTURE(message);
  StepGraph graph(step, test_device());
  CHECK_FALSE(graph());
  if (on_cpu()) return;
  CHECK_THROWS_WITH_AS(graph(), doctest::Contains(message), StateError);
  CHECK_FALSE(graph());
}

/// A parameter, its optimizer and a step.
struct Trained {
  Parameter w{full(1), "w"};
  Tensor x = full(2), loss = Tensor::zeros({}, DType::f32, test_device());
  optim::SGD sgd{{w}, {.lr = 0.0625}};

  void train(double by = 1) {
    Tape tape;
    const Tensor product = mul(w, x);
    const Tensor value = mean(mul(product, product));
    tape.backward(by == 1 ? value : value * by);
    sgd.step();
    sgd.zero_grad();
    loss.copy_from(value.detach());
  }
  void look(std::vector<float>& seen) const { seen.push_back(w.value().to_vector<float>()[0]); }
};

}  // namespace lockstep::test::host_programs
