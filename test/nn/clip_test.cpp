// Gradient clipping over parameters, and under DDP.

#include "lockstep/nn/optim/clip.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "lockstep/autograd/ops.h"
#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/nn/optim/optimizer.h"
#include "support/device.h"

using namespace lockstep;
using lockstep::test::here;

namespace {

/// A parameter whose gradient is `gradient`.
Parameter with_gradient(const std::string& name, const Tensor& gradient) {
  const Parameter parameter(here(Tensor::zeros(gradient.shape(), gradient.dtype())), name);
  parameter.gradient_slot().copy_from(gradient);
  parameter.set_gradient_state(GradientState::local);
  return parameter;
}

std::vector<float> gradient_of(const Parameter& parameter) {
  return parameter.gradient().to_vector<float>();
}

}  // namespace

TEST_CASE("clip_grad_norm: 3, 4, 12 are 13 long, and PyTorch's 1.3 afterwards") {
  const Parameter a = with_gradient("a", Tensor::of<float>({2}, {3, -4})),
                  none(here(Tensor::full({2}, 7)), "none"),
                  b = with_gradient("b", Tensor::of<double>({1, 1}, {12}));
  const Tensor norm = optim::clip_grad_norm({a, none, b}, 1.3);
  CHECK(norm.item() == 13);
  CHECK(norm.dtype() == DType::f64);
  CHECK(norm.shape() == Shape{});
  CHECK(norm.device() == test::test_device());
  // torch.nn.utils.clip_grad_norm_ of the same.
  CHECK(gradient_of(a)[0] == doctest::Approx(0.299999982).epsilon(1e-7));
  CHECK(gradient_of(a)[1] == doctest::Approx(-0.399999976).epsilon(1e-7));
  CHECK(b.gradient().item() == doctest::Approx(1.1999999076923147).epsilon(1e-12));
  CHECK(none.gradient_state() == GradientState::nothing);
  // Short enough now: not a bit changes, and the norm is that of what was clipped.
  const std::vector<float> before = gradient_of(a);
  CHECK(optim::clip_grad_norm({a, b}, 2).item() == doctest::Approx(1.3).epsilon(1e-6));
  CHECK(gradient_of(a) == before);
  CHECK(optim::clip_grad_norm({none}, 1).item() == 0);
  CHECK(optim::clip_grad_norm({}, 1).item() == 0);
}

TEST_CASE("clip_grad_value moves what lies outside to the limit") {
  const Parameter a = with_gradient("a", Tensor::of<float>({4}, {0.25, -3, 0.5, 9})),
                  none(here(Tensor::full({2}, 7)), "none");
  optim::clip_grad_value({none, a}, 0.5);
  CHECK(gradient_of(a) == std::vector<float>{0.25, -0.5, 0.5, 0.5});
  optim::clip_grad_value({none}, 0.5);
}

TEST_CASE("limits that make no sense are refused with their value") {
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_WITH_AS(optim::clip_grad_norm({}, bad),
                         doctest::Contains("[clip_grad_norm] max_norm must be positive"),
                         UsageError);
    CHECK_THROWS_WITH_AS(optim::clip_grad_value({}, bad),
                         doctest::Contains("[clip_grad_value] limit must be positive"), UsageError);
  }
}

TEST_CASE("under DDP the clipped gradients have the same bits on every rank, for any bucket cap") {
  std::vector<std::string> digests;
  for (const int size : {2, 3})
    for (const double cap : {25.0, 0.0001}) {
      std::string digest;
      run_threads(size, {.comm = "direct"}, [&](World& world) {
        std::vector<Parameter> parameters;
        for (int k = 0; k < 5; ++k) {
          const Shape shape{13 + 20 * k};
          parameters.emplace_back(Tensor::full(shape, 0.1 * (k + 1)), fmt::format("p{}", k));
        }
        optim::SGD optimizer(parameters, {.lr = 0.5});
        const dist::DistributedDataParallel ddp(parameters, {}, world, {.bucket_cap_mb = cap});
        for (int step = 0; step < 3; ++step) {
          Tape tape;
          Tensor loss = sum(parameters[0] * parameters[0]);
          for (int k = 1; k < 5; ++k) {
            const double factor = world.rank() + 0.7 * k + step;
            const Tensor scaled = scale(parameters[static_cast<std::size_t>(k)], factor);
            loss = loss + sum(scaled * scaled);
          }
          tape.backward(loss);
          const double norm = optim::clip_grad_norm(parameters, 1).item();
          check<Error>(norm > 1, "nothing was clipped: {}", norm);
          const double after = optim::clip_grad_norm(parameters, 1e6).item();
          check<Error>(std::abs(after - 1) < 1e-5, "clipped to {}", after);
          optimizer.step();
          optimizer.zero_grad();
        }
        const auto all = dist::gather_text(world.communicator(), parameter_digest(parameters));
        for (const std::string& other : all) check<Error>(other == all[0], "replicas differ");
        if (world.rank() == 0) digest = all[0];
      });
      digests.push_back(digest);
    }
  CHECK(digests[0] == digests[1]);
  CHECK(digests[2] == digests[3]);
  CHECK(digests[0] != digests[2]);
}

TEST_CASE("a gradient that DDP has not synchronized is not clipped, and is named") {
  run_threads(1, {}, [](World& world) {
    const Parameter w(Tensor::full({3}, 1), "head.weight");
    const dist::DistributedDataParallel ddp({w}, {}, world);
    w.set_gradient_state(GradientState::local);
    for (const auto clip : {+[](const Parameter& p) { (void)optim::clip_grad_norm({p}, 1); },
                            +[](const Parameter& p) { optim::clip_grad_value({p}, 1); }})
      try {
        clip(w);
        fail<Error>("it was clipped");
      } catch (const StateError& error) {
        check<Error>(std::string_view(error.what())
                             .find("the gradient of 'head.weight' is not synchronized") !=
                         std::string_view::npos,
                     "{}", error.what());
      }
  });
}
