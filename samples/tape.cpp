// `./lockstep sample tape`: what a tape records, when it tells that a gradient is ready, and
// whether the gradient is right. The second chapter of the tour (docs/tour/) is about this program.

#include <lockstep/launch/report.h>
#include <lockstep/lockstep.h>

#include <cmath>

using namespace lockstep;

namespace {

struct Model {
  Parameter weight{Tensor::of<double>({2, 2}, {0.5, -0.3, 0.8, 0.1}), "weight"};  // used twice
  Parameter scale{Tensor::of<double>({1}, {3}), "scale"};
  Parameter unused{Tensor::of<double>({1}, {7}), "unused"};
};

Tensor loss_of(const Model& model, const Tensor& x) {
  const Tensor h = tanh(matmul(x, Tensor(model.weight)));
  return mean(tanh(matmul(h, Tensor(model.weight))) * Tensor(model.scale));
}

/// Says what backward tells the observers of parameters. DDP's reducer is such an observer.
class Watcher final : public GradientObserver {
 public:
  explicit Watcher(const Model& model) : all_{model.weight, model.scale, model.unused} {
    for (const Parameter& parameter : all_) observations_.push_back(parameter.observe(*this));
  }
  void backward_begins(const Contribution&) override {
    for (const Parameter& parameter : all_)
      fmt::print("{:<7} waits for {} contribution{}\n", parameter.name(), parameter.uses_left(),
                 parameter.uses_left() == 1 ? "" : "s");
  }
  void gradient_ready(const Parameter& parameter) override {
    fmt::print("{:<7} is ready\n", parameter.name());
  }
  void backward_ends() override { fmt::print("backward ends\n\n"); }

 private:
  std::vector<Parameter> all_;
  std::vector<Observation> observations_;
};

void backward(const Model& model, const Tensor& x) {
  const Watcher watcher(model);
  Tape tape;
  const Tensor loss = loss_of(model, x);
  tape.backward(loss);
}

/// The derivative by element `i` of `weight`, from two losses close to it. No tape lives here, so
/// that nothing is recorded.
double numeric(const Model& model, const Tensor& x, std::int64_t i) {
  constexpr double h = 1e-5;
  double* element = model.weight.value().data<double>() + i;
  const double before = *element;
  *element = before + h;
  const double up = loss_of(model, x).item();
  *element = before - h;
  const double down = loss_of(model, x).item();
  *element = before;
  return (up - down) / (2 * h);
}

}  // namespace

int main() {
  return run_main([] {
    const Model model;
    const Tensor x = Tensor::of<double>({3, 2}, {1, 2, -1, 0.5, 0.3, -2});
    backward(model, x);
    fmt::print("element   by the tape   by two losses\n");
    for (std::int64_t i = 0; i < 4; ++i) {
      const double tape = model.weight.gradient().data<double>()[i];
      const double two_losses = numeric(model, x, i);
      fmt::print("{:>7}   {:11.8f}     {:11.8f}\n", i, tape, two_losses);
      check<Error>(std::abs(tape - two_losses) < 1e-8, "[tape] element {}: {} and {}", i, tape,
                   two_losses);
    }
    check<Error>(!model.unused.gradient().defined(), "[tape] unused has a gradient");
    return 0;
  });
}
