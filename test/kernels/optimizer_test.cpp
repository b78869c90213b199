#include "lockstep/kernels/optimizer.h"

#include "kernels/support.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

/// PyTorch's options with its defaults.
SgdConfig sgd_config(const nlohmann::json& options) {
  return {.lr = options["lr"],
          .momentum = options.value("momentum", 0.0),
          .dampening = options.value("dampening", 0.0),
          .weight_decay = options.value("weight_decay", 0.0),
          .nesterov = options.value("nesterov", false)};
}

AdamConfig adam_config(const nlohmann::json& options, bool decoupled) {
  return {.lr = options["lr"],
          .beta1 = options["betas"][0],
          .beta2 = options["betas"][1],
          .eps = options.value("eps", 1e-8),
          .weight_decay = options.value("weight_decay", 0.0),
          .decoupled = decoupled};
}

}  // namespace

TEST_CASE_TEMPLATE("optimizer steps are PyTorch's", T, float, double) {
  const auto& all = reference()["optimizers"];
  const Values start = all["start"];
  const Shape shape{static_cast<std::int64_t>(start.size())};
  REQUIRE(all["cases"].size() == 10);
  for (const auto& entry : all["cases"]) {
    const std::string kind = entry["kind"], options = entry["options"].dump();
    CAPTURE(kind);
    CAPTURE(options);
    // What the buffers hold before the first step does not matter to SGD.
    SgdItem sgd{of_values<T>(shape, start), nan<T>(shape), nan<T>(shape), true};
    AdamItem adam{sgd.value, sgd.gradient, Tensor::zeros(shape, dtype_of<T>()),
                  Tensor::zeros(shape, dtype_of<T>()), 1};
    std::size_t step = 0;
    for (const auto& expected : entry[std::is_same_v<T, float> ? "f32" : "f64"]) {
      CAPTURE(step);
      sgd.gradient.copy_from(of_values<T>(shape, all["gradients"][step++]));
      if (kind == "sgd")
        sgd_step({&sgd, 1}, sgd_config(entry["options"]));
      else
        adam_step({&adam, 1}, adam_config(entry["options"], kind == "adamw"));
      // PyTorch may round a product and a sum once, we round twice: a unit or two in the last
      // place.
      check_close<T>(sgd.value, expected, tolerance<T>(3e-7, 1e-15));
      sgd.first = false;
      ++adam.step;
    }
    CHECK(step == 4);
  }
}

TEST_CASE_TEMPLATE("one table, many tensors, any length", T, float, double) {
  // Each element follows the formula alone, wherever it lies in a tensor and in the table.
  std::vector<SgdItem> items;
  std::vector<AdamItem> adam_items;
  const std::int64_t sizes[] = {0, 1, 3, 16, 17, 65, 1000};
  for (std::int64_t n : sizes) {
    const Shape shape{n};
    items.push_back({varied<T>(shape, 1), varied<T>(shape, 2), varied<T>(shape, 3), false});
    const Tensor variance = varied<T>(shape, 5);
    for (T& v : variance.span<T>()) v = v * v;
    adam_items.push_back(
        {varied<T>(shape, 1), varied<T>(shape, 2), varied<T>(shape, 4), variance, 3});
  }
  sgd_step(items, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  adam_step(adam_items, {.lr = 0.1, .weight_decay = 0.01});
  const std::size_t longest = std::size(sizes) - 1;
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    check_close<T>(items[i].value, to_values<T>(items[longest].value.slice(0, sizes[i])), 0);
    check_close<T>(items[i].momentum, to_values<T>(items[longest].momentum.slice(0, sizes[i])), 0);
    check_close<T>(adam_items[i].value, to_values<T>(adam_items[longest].value.slice(0, sizes[i])),
                   0);
  }
  for (std::int64_t i = 0; i < 1000; ++i) {
    const double g = value_at(i, 2) + 0.01 * value_at(i, 1), buffer = 0.9 * value_at(i, 3) + g;
    const double value = value_at(i, 1) - 0.1 * buffer;
    CHECK(static_cast<double>(items[longest].value.data<T>()[i]) ==
          doctest::Approx(value).epsilon(tolerance<T>(1e-5, 1e-12)));
  }
}

TEST_CASE("the first Adam step moves by the learning rate") {
  // m / (1 - b1) = g and v / (1 - b2) = g^2: the step is lr * sign(g), whatever the gradient's
  // size.
  const Tensor value = Tensor::zeros({3}, DType::f64);
  const AdamItem item{value, Tensor::of<double>({3}, {1e-3, -5.0, 1e6}),
                      Tensor::zeros({3}, DType::f64), Tensor::zeros({3}, DType::f64), 1};
  adam_step({&item, 1}, {.lr = 0.01, .eps = 0});
  check_close<double>(value, {-0.01, 0.01, -0.01}, 1e-14);
}

TEST_CASE("optimizers refuse what does not fit") {
  const Tensor a = varied<float>({3}), b = varied<float>({4}), d = varied<double>({3});
  const auto sgd = [](SgdItem item) { sgd_step({&item, 1}, {.momentum = 0.9}); };
  CHECK_THROWS_WITH_AS(sgd({a, b, a, false}), "[sgd_step] gradient: expected shape (3,), got (4,)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(sgd({a, d, a, false}), "[sgd_step] gradient: expected f32, got f64",
                       DTypeError);
  CHECK_THROWS_WITH_AS(sgd({a, a, Tensor(), false}), "[sgd_step] momentum is undefined",
                       ShapeError);
  const AdamItem early{a, a.clone(), a.clone(), a.clone(), 0};
  CHECK_THROWS_WITH_AS(adam_step({&early, 1}, {}), "[adam_step] step: expected at least 1, got 0",
                       StateError);
  sgd_step({}, {});
  adam_step({}, {});
}
