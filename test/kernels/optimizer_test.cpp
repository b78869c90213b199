#include "lockstep/kernels/optimizer.h"

#include "kernels/support.h"
#include "lockstep/core/gpu/gpu.h"

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
          .nesterov = options.value("nesterov", false),
          .maximize = options.value("maximize", false)};
}

AdamConfig adam_config(const nlohmann::json& options, bool decoupled) {
  return {.lr = options["lr"],
          .beta1 = options["betas"][0],
          .beta2 = options["betas"][1],
          .eps = options.value("eps", 1e-8),
          .weight_decay = options.value("weight_decay", 0.0),
          .amsgrad = options.value("amsgrad", false),
          .maximize = options.value("maximize", false),
          .decoupled = decoupled};
}

RmspropConfig rmsprop_config(const nlohmann::json& options) {
  return {.lr = options["lr"],
          .alpha = options.value("alpha", 0.99),
          .eps = options.value("eps", 1e-8),
          .weight_decay = options.value("weight_decay", 0.0),
          .momentum = options.value("momentum", 0.0),
          .centered = options.value("centered", false),
          .maximize = options.value("maximize", false)};
}

LionConfig lion_config(const nlohmann::json& options) {
  return {.lr = options["lr"],
          .beta1 = options["betas"][0],
          .beta2 = options["betas"][1],
          .weight_decay = options.value("weight_decay", 0.0),
          .maximize = options.value("maximize", false)};
}

/// An Adam step counter.
Tensor step_count(std::int64_t done) { return here(Tensor::of<std::int64_t>({}, {done})); }

/// n elements that begin `skip` elements into their storage: with 1, no 16-byte access is possible.
template <class T>
Tensor varied_slice(std::int64_t n, int skip, int seed) {
  const Tensor whole = nan<T>({n + skip});
  const Tensor part = whole.slice(skip, n + skip);
  part.copy_from(varied<T>({n}, seed));
  return part;
}

template <class T>
Tensor squares(std::int64_t n, int seed) {
  Values values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(value_at(i, seed) * value_at(i, seed));
  return of_values<T>({n}, values);
}

}  // namespace

TEST_CASE_TEMPLATE("optimizer steps are PyTorch's", T, float, double) {
  const auto& all = reference()["optimizers"];
  const Values start = all["start"];
  const Shape shape{static_cast<std::int64_t>(start.size())};
  REQUIRE(all["cases"].size() == 23);
  for (const auto& entry : all["cases"]) {
    const std::string kind = entry["kind"], text = entry["options"].dump();
    const auto& options = entry["options"];
    CAPTURE(kind);
    CAPTURE(text);
    const auto zeros = [&] { return here(Tensor::zeros(shape, dtype_of<T>())); };
    // What the buffers hold before the first step does not matter to SGD.
    SgdItem sgd{of_values<T>(shape, start), nan<T>(shape), nan<T>(shape), true};
    const AdamItem adam{sgd.value, sgd.gradient, zeros(), zeros(), step_count(0), {}, zeros()};
    const RmspropItem rmsprop{sgd.value, sgd.gradient, zeros(), zeros(), zeros()};
    const LionItem lion{sgd.value, sgd.gradient, zeros()};
    std::size_t step = 0;
    for (const auto& expected : entry[std::is_same_v<T, float> ? "f32" : "f64"]) {
      CAPTURE(step);
      sgd.gradient.copy_from(of_values<T>(shape, all["gradients"][step++]));
      if (kind == "sgd")
        sgd_step({&sgd, 1}, sgd_config(options));
      else if (kind == "rmsprop")
        rmsprop_step({&rmsprop, 1}, rmsprop_config(options));
      else if (kind == "lion")
        lion_step({&lion, 1}, lion_config(options));
      else
        adam_step({&adam, 1}, adam_config(options, kind == "adamw"));
      // PyTorch may round a product and a sum once, we round twice: a unit or two in the last
      // place.
      check_close<T>(sgd.value, expected, tolerance<T>(3e-7, 1e-15));
      sgd.first = false;
    }
    CHECK(step == 4);
    CHECK(adam.step.item() == (kind.starts_with("adam") ? 4 : 0));
  }
}

TEST_CASE_TEMPLATE("one table, many tensors, any length and alignment", T, float, double) {
  // Each element follows the formula alone, wherever it lies in a tensor, in memory, in the table.
  // The longest is more than a block's chunk; a kernel's table holds fewer than 100 tensors.
  std::vector<SgdItem> items;
  std::vector<AdamItem> adam_items;
  std::vector<std::int64_t> sizes = {0, 1, 3, 16, 17, 65, 1000, 4099};
  while (sizes.size() < 110) sizes.insert(sizes.end() - 1, static_cast<std::int64_t>(sizes.size()));
  for (const std::int64_t n : sizes) {
    const int skip = n % 2 == 1 && n < 4099 ? 1 : 0;
    items.push_back({varied_slice<T>(n, skip, 1), varied<T>({n}, 2), varied_slice<T>(n, skip, 3),
                     n % 3 == 0 && n < 4099});
    adam_items.push_back({varied<T>({n}, 1), varied_slice<T>(n, skip, 2),
                          varied_slice<T>(n, skip, 4), squares<T>(n, 5), step_count(2)});
  }
  std::vector<SgdItem> first_item = {
      {varied<T>({4099}, 1), varied<T>({4099}, 2), nan<T>({4099}), true}};
  const SgdConfig sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01};
  sgd_step(items, sgd);
  sgd_step(first_item, sgd);
  adam_step(adam_items, {.lr = 0.1, .weight_decay = 0.01});
  const Values value = to_values<T>(items.back().value),
               buffer = to_values<T>(items.back().momentum),
               first = to_values<T>(first_item[0].value),
               adam = to_values<T>(adam_items.back().value),
               variance = to_values<T>(adam_items.back().variance);
  const auto beginning = [](const Values& values, std::int64_t n) {
    return Values(values.begin(), values.begin() + n);
  };
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(sizes[i]);
    check_close<T>(items[i].value, beginning(items[i].first ? first : value, sizes[i]), 0);
    if (!items[i].first) check_close<T>(items[i].momentum, beginning(buffer, sizes[i]), 0);
    check_close<T>(adam_items[i].value, beginning(adam, sizes[i]), 0);
    check_close<T>(adam_items[i].variance, beginning(variance, sizes[i]), 0);
    CHECK(adam_items[i].step.item() == 3);
  }
  for (std::int64_t i = 0; i < 4099; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double g = value_at(i, 2) + 0.01 * value_at(i, 1);
    const double b = 0.9 * value_at(i, 3) + 0.75 * g;
    CHECK(value[at] ==
          doctest::Approx(value_at(i, 1) - 0.1 * b).epsilon(tolerance<T>(1e-5, 1e-12)));
    CHECK(first[at] ==
          doctest::Approx(value_at(i, 1) - 0.1 * g).epsilon(tolerance<T>(1e-5, 1e-12)));
    const double m = 0.9 * value_at(i, 4) + 0.1 * g;
    const double v = 0.999 * value_at(i, 5) * value_at(i, 5) + 0.001 * g * g;
    const double step = 0.1 / (1 - std::pow(0.9, 3)) * m /
                        (std::sqrt(v) / std::sqrt(1 - std::pow(0.999, 3)) + 1e-8);
    CHECK(adam[at] == doctest::Approx(value_at(i, 1) - step).epsilon(tolerance<T>(1e-4, 1e-12)));
  }
}

TEST_CASE_TEMPLATE("RMSprop and Lion: many tensors, any length and alignment", T, float, double) {
  std::vector<RmspropItem> items;
  std::vector<LionItem> lion_items;
  std::vector<std::int64_t> sizes = {0, 1, 3, 16, 17, 65, 1000, 4099};
  while (sizes.size() < 110) sizes.insert(sizes.end() - 1, static_cast<std::int64_t>(sizes.size()));
  for (const std::int64_t n : sizes) {
    const int skip = n % 2 == 1 && n < 4099 ? 1 : 0;
    items.push_back({varied<T>({n}, 1), varied_slice<T>(n, skip, 2), squares<T>(n, 5),
                     varied_slice<T>(n, skip, 3), varied<T>({n}, 4)});
    lion_items.push_back(
        {varied_slice<T>(n, skip, 1), varied<T>({n}, 2), varied_slice<T>(n, skip, 3)});
  }
  rmsprop_step(items, {.lr = 0.1, .alpha = 0.9, .eps = 4, .momentum = 0.5});
  const double beta1 = 0.75, beta2 = 0.5;  // exact
  lion_step(lion_items, {.lr = 0.25, .beta1 = beta1, .beta2 = beta2, .weight_decay = 0.5});
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    CAPTURE(sizes[k]);
    Values value, lion, momentum;
    for (std::int64_t i = 0; i < sizes[k]; ++i) {
      const double x = value_at(i, 1), g = value_at(i, 2), m = value_at(i, 3);
      const double square = 0.9 * value_at(i, 5) * value_at(i, 5) + 0.1 * g * g;
      value.push_back(x - 0.1 * (0.5 * value_at(i, 4) + g / (std::sqrt(square) + 4)));
      const double c = beta1 * m + (1 - beta1) * g;
      lion.push_back(0.875 * x - 0.25 * (c > 0 ? 1 : c < 0 ? -1 : 0));
      momentum.push_back(beta2 * m + (1 - beta2) * g);
    }
    check_close<T>(items[k].value, value, tolerance<T>(1e-6, 1e-14));
    check_close<T>(items[k].mean, to_values<T>(varied<T>({sizes[k]}, 3)), 0);  // not centered
    check_close<T>(lion_items[k].value, lion, tolerance<T>(1e-6, 1e-14));
    check_close<T>(lion_items[k].momentum, momentum, tolerance<T>(1e-6, 1e-14));
  }
}

TEST_CASE_TEMPLATE("what is not a number stays so", T, float, double) {
  const double nan_value = std::numeric_limits<double>::quiet_NaN();
  const Values x = {1, 1, 1}, g = {nan_value, 0, 2};
  const LionItem lion{of_values<T>({3}, x), of_values<T>({3}, g), of_values<T>({3}, {0, 0, 0})};
  lion_step({&lion, 1}, {.lr = 0.5});
  check_close<T>(lion.value, {nan_value, 1, 0.5}, 0);  // and the sign of 0 is 0
  const auto of = [](const Values& values) { return of_values<T>({3}, values); };
  // A largest variance that was NaN, one that becomes so, and one that is kept.
  const AdamItem adam{of(x), of({1, nan_value, 1}), of({0, 0, 0}), of({4, 4, 4}), step_count(0),
                      {},    of({nan_value, 9, 9})};
  adam_step({&adam, 1}, {.beta2 = 0.5, .amsgrad = true});
  check_close<T>(adam.max_variance, {nan_value, nan_value, 9}, 0);
  check_close<T>(adam.variance, {2.5, nan_value, 2.5}, 0);
}

TEST_CASE("one call takes tensors of both dtypes") {
  const std::vector<SgdItem> items = {
      {varied<double>({5}, 1), varied<double>({5}, 2), Tensor(), false},
      {varied<float>({3}, 3), varied<float>({3}, 4), Tensor(), false},
      {varied<double>({2}, 5), varied<double>({2}, 6), Tensor(), false}};
  sgd_step(items, {.lr = 0.5});  // exact in both
  for (int k = 0; k < 3; ++k) {
    const Values result = k == 1 ? to_values<float>(items[1].value)
                                 : to_values<double>(items[static_cast<std::size_t>(k)].value);
    for (std::size_t i = 0; i < result.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      CHECK(result[i] == doctest::Approx(value_at(at, 2 * k + 1) - 0.5 * value_at(at, 2 * k + 2)));
    }
  }
}

TEST_CASE_TEMPLATE("SGD takes no fused multiply-add: its bits are the same on every device", T,
                   float, double) {
  const auto step = [](Device device) {
    const SgdItem item{varied<T>({999}, 1).to(device), varied<T>({999}, 2).to(device),
                       varied<T>({999}, 3).to(device), false};
    sgd_step({&item, 1}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.3, .nesterov = true});
    return to_values<T>(item.value);
  };
  CHECK(step(test_device()) == step({}));
}

TEST_CASE("a GPU updates many tensors in one launch") {
  if (on_cpu()) return;  // nothing is launched
  std::vector<SgdItem> items;
  std::vector<AdamItem> adam_items;
  for (int k = 0; k < 48; ++k) {
    const std::int64_t n = 100 * k;
    items.push_back({varied<float>({n}, k), varied<float>({n}, 1), varied<float>({n}, 2), false});
    adam_items.push_back({varied<float>({n}, k), varied<float>({n}, 1), varied<float>({n}, 2),
                          squares<float>(n, 3), step_count(0)});
  }
  std::vector<RmspropItem> rmsprop_items;
  std::vector<LionItem> lion_items;
  for (const AdamItem& item : adam_items) {
    rmsprop_items.push_back({item.value, item.gradient, item.variance, {}, item.mean});
    lion_items.push_back({item.value, item.gradient, item.mean});
  }
  const auto launches = [] { return gpu::kernel_launches()["optimizer_step_kernel"]; };
  const auto before = launches();
  sgd_step(items, {.momentum = 0.9});
  CHECK(launches() - before == 1);
  adam_step(adam_items, {});
  CHECK(launches() - before == 2);
  rmsprop_step(rmsprop_items, {.momentum = 0.9});
  CHECK(launches() - before == 3);
  lion_step(lion_items, {});
  CHECK(launches() - before == 4);
}

TEST_CASE("the first Adam step moves by the learning rate") {
  // m / (1 - b1) = g and v / (1 - b2) = g^2: the step is lr * sign(g), whatever the gradient's
  // size.
  const Tensor zeros = Tensor::zeros({3}, DType::f64);
  const AdamItem item{here(zeros), of_values<double>({3}, {1e-3, -5.0, 1e6}), here(zeros.clone()),
                      here(zeros.clone()), step_count(0)};
  adam_step({&item, 1}, {.lr = 0.01, .eps = 0});
  check_close<double>(item.value, {-0.01, 0.01, -0.01}, 1e-14);
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
  const auto adam = [&](Tensor step) {
    const AdamItem item{a, a.clone(), a.clone(), a.clone(), step};
    adam_step({&item, 1}, {});
  };
  CHECK_THROWS_WITH_AS(adam(Tensor()), "[adam_step] step is undefined", ShapeError);
  CHECK_THROWS_WITH_AS(adam(varied<float>({1})), "[adam_step] step: expected i64, got f32",
                       DTypeError);
  CHECK_THROWS_WITH_AS(adam(here(Tensor::of<std::int64_t>({2}, {1, 1}))),
                       "[adam_step] step: expected one element, got (2,)", ShapeError);
  const AdamItem no_largest{a, a.clone(), a.clone(), a.clone(), step_count(0)};
  CHECK_THROWS_WITH_AS(adam_step({&no_largest, 1}, {.amsgrad = true}),
                       "[adam_step] max_variance is undefined", ShapeError);
  const auto rmsprop = [&](RmspropItem item, RmspropConfig config) {
    rmsprop_step({&item, 1}, config);
  };
  CHECK_THROWS_WITH_AS(rmsprop({a, a, {}, {}, {}}, {}), "[rmsprop_step] square is undefined",
                       ShapeError);
  CHECK_THROWS_WITH_AS(rmsprop({a, a, a, {}, {}}, {.centered = true}),
                       "[rmsprop_step] mean is undefined", ShapeError);
  CHECK_THROWS_WITH_AS(rmsprop({a, a, a, {}, b}, {.momentum = 0.9}),
                       "[rmsprop_step] momentum: expected shape (3,), got (4,)", ShapeError);
  const LionItem lion{a, a, d};
  CHECK_THROWS_WITH_AS(lion_step({&lion, 1}, {}), "[lion_step] momentum: expected f32, got f64",
                       DTypeError);
  sgd_step({}, {});
  adam_step({}, {});
  rmsprop_step({}, {});
  lion_step({}, {});
}
