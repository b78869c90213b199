#include "lockstep/kernels/random.h"

#include <algorithm>

#include "kernels/support.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

using nlohmann::json;

json numbers(const char* file) {
  return json::parse(std::ifstream(std::string(LOCKSTEP_TEST_DATA "/") + file));
}

Tensor new_mask(const Shape& shape) { return Tensor::full(shape, 7, DType::u8, test_device()); }

/// The elements of a vector, one offset into the memory beneath.
template <class T>
Tensor unaligned(std::int64_t n) {
  return nan<T>({n + 1}).slice(1, n + 1);
}

}  // namespace

TEST_CASE("normal gives PyTorch's randn on CUDA") {
  const json published = numbers("philox.json");
  for (const auto& stream : published["randn"]) {
    const Tensor out = nan<float>({4, 4});
    normal({stream["seed"], 0}, out, 0, 1);
    check_close<float>(out, stream["values"].get<Values>(), 2e-6);
    normal({stream["seed"], 0}, out, 10, 0.5);
    Values moved = stream["values"];
    for (double& v : moved) v = 10 + 0.5 * v;
    check_close<float>(out, moved, 1e-6);
  }
}

TEST_CASE_TEMPLATE("long fills are cuRAND's numbers in PyTorch's layout", T, float, double) {
  int compared = 0;
  for (const json& entry : numbers("curand.json")) {
    const std::string kind = entry["kind"];
    if (kind == "dropout" || entry["dtype"] != name_of(dtype_of<T>())) continue;
    CAPTURE(kind);
    const PhiloxState state{entry["seed"], entry["offset"]};
    const std::int64_t n = entry["elements"].back()[0].get<std::int64_t>() + 1;
    const Tensor out = nan<T>({n});
    if (kind == "uniform")
      uniform(state, out, 0, 1);
    else
      normal(state, out, 0, 1);
    const std::vector<T> values = out.to_vector<T>();
    CHECK(std::none_of(values.begin(), values.end(), [](T v) { return std::isnan(v); }));
    for (const auto& [i, value] :
         entry["elements"].get<std::vector<std::pair<std::size_t, double>>>()) {
      CAPTURE_BINDING(i);
      check_close({values[i]}, {value}, kind == "uniform" ? 0 : tolerance<T>(2e-6, 1e-13));
    }
    ++compared;
  }
  CHECK(compared == 4);
}

TEST_CASE_TEMPLATE("number i depends on i alone, not on size or alignment", T, float, double) {
  const PhiloxState state{11, 40};
  const Tensor all = nan<T>({3000});
  normal(state, all, 0, 1);
  for (std::int64_t n : {0, 1, 3, 4, 5, 127, 1023}) {
    const Tensor some = unaligned<T>(n), aligned = nan<T>({n});
    normal(state, some, 0, 1);
    normal(state, aligned, 0, 1);
    check_close<T>(some, to_values<T>(all.slice(0, n)), 0);
    check_close<T>(aligned, to_values<T>(all.slice(0, n)), 0);
  }
}

TEST_CASE_TEMPLATE("uniform stays in its bounds", T, float, double) {
  const Tensor out = nan<T>({20000});
  const T low = T(-0.3), high = T(0.1);
  uniform({1, 0}, out, low, high);
  const std::vector<T> values = out.to_vector<T>();
  const auto [least, largest] = std::minmax_element(values.begin(), values.end());
  CHECK(*least >= low);
  CHECK(*largest < high);
  CHECK(*least < low + T(1e-3));
  CHECK(*largest > high - T(1e-3));
  uniform({1, 0}, out, 5, 5);
  check_close<T>(out, Values(20000, 5), 0);
}

TEST_CASE_TEMPLATE("normal has the moments and tails of the distribution", T, float, double) {
  constexpr std::int64_t n = 60000;
  const Tensor out = nan<T>({n});
  normal({2, 0}, out, 3, 2);
  double sum = 0, squares = 0, cubes = 0, beyond = 0;
  for (const double value : to_values<T>(out)) {
    const double z = (value - 3) / 2;
    sum += z, squares += z * z, cubes += z * z * z, beyond += std::abs(z) > 1.959964;
  }
  // Within 4 standard errors: of z 1, of z^2 sqrt 2, of z^3 sqrt 15, of a fraction of 5 % sqrt
  // 0.0475.
  const double error = 4 / std::sqrt(static_cast<double>(n));
  CHECK(std::abs(sum / n) < error);
  CHECK(std::abs(squares / n - 1) < std::sqrt(2) * error);
  CHECK(std::abs(cubes / n) < std::sqrt(15) * error);
  CHECK(std::abs(beyond / n - 0.05) < std::sqrt(0.0475) * error);
}

TEST_CASE("dropout keeps what cuRAND's numbers in PyTorch's layout keep") {
  int compared = 0;
  for (const json& entry : numbers("curand.json")) {
    if (entry["kind"] != "dropout") continue;
    const std::int64_t n = entry["elements"].back()[0].get<std::int64_t>() + 1;
    const Tensor x = Tensor::full({n}, 1.5, DType::f32, test_device());
    const Tensor out = nan<float>({n}), mask = new_mask({n});
    for (const double p : {0.3, 0.75}) {
      dropout({entry["seed"], entry["offset"]}, x, p, out, mask);
      const std::vector<float> values = out.to_vector<float>();
      const std::vector<std::uint8_t> kept = mask.to_vector<std::uint8_t>();
      for (const auto& [i, number] :
           entry["elements"].get<std::vector<std::pair<std::size_t, double>>>()) {
        CAPTURE_BINDING(i);
        CHECK(kept[i] == (number < 1 - p));
        check_close({values[i]}, {number < 1 - p ? 1.5 / (1 - p) : 0}, 1e-6);
      }
    }
    ++compared;
  }
  CHECK(compared == 2);
}

TEST_CASE_TEMPLATE("dropout and its gradient at all sizes and alignments", T, float, double) {
  const PhiloxState state{5, 4};
  const double p = 0.4, scale = 1 / 0.6;
  const Tensor all = new_mask({5000});  // the mask, whatever the dtype
  dropout(state, Tensor::zeros({5000}, DType::f32, test_device()), p, nan<float>({5000}), all);
  const std::vector<std::uint8_t> kept = all.to_vector<std::uint8_t>();
  const auto share = static_cast<double>(std::count(kept.begin(), kept.end(), 1)) / 5000;
  CHECK(std::abs(share - 0.6) < 4 * std::sqrt(0.24 / 5000));

  for (const std::int64_t n : {0, 1, 3, 4, 5, 1023, 1024, 1027, 4999})
    for (const std::int64_t offset : {0, 1}) {
      CAPTURE(n);
      CAPTURE(offset);
      const auto part = [&](const Tensor& whole) { return whole.slice(offset, offset + n); };
      const Tensor x = part(varied<T>({n + 1}, 1)), y = part(nan<T>({n + 1}));
      const Tensor mask = part(new_mask({n + 1}));
      Values expected, gradient, doubled;
      for (std::int64_t i = 0; i < n; ++i) {
        const bool keep = kept[static_cast<std::size_t>(i)] == 1;
        expected.push_back(keep ? value_at(i + offset, 1) * scale : 0);
        gradient.push_back(keep ? value_at(i + offset, 2) * scale : 0);
        doubled.push_back(2 * gradient.back());
      }
      dropout(state, x, p, y, mask);
      check_close<T>(y, expected, tolerance<T>(2e-7, 1e-15));
      CHECK(std::equal(kept.begin(), kept.begin() + n, mask.to_vector<std::uint8_t>().begin()));
      dropout(state, x, p, x, mask);  // in place
      check_close<T>(x, expected, tolerance<T>(2e-7, 1e-15));

      const Tensor dy = part(varied<T>({n + 1}, 2)), dx = part(nan<T>({n + 1}));
      dropout_backward(dy, mask, p, dx, false);
      check_close<T>(dx, gradient, tolerance<T>(2e-7, 1e-15));
      dropout_backward(dy, mask, p, dx, true);
      check_close<T>(dx, doubled, tolerance<T>(2e-7, 1e-15));
    }
}

TEST_CASE("dropout of nothing keeps everything; NaN is not hidden") {
  const Tensor x = varied<float>({999}), out = nan<float>({999}), mask = new_mask({999});
  dropout({3, 0}, x, 0, out, mask);
  check_close<float>(out, to_values<float>(x), 0);
  check_close(to_values<std::uint8_t>(mask), Values(999, 1), 0);
  dropout({3, 0}, nan<float>({999}), 0.5, out, mask);
  for (const double v : to_values<float>(out)) CHECK(std::isnan(v));
}

TEST_CASE("random kernels refuse what does not fit") {
  const Tensor x = varied<float>({4}), mask = new_mask({4});
  const Tensor labels = Tensor::zeros({4}, DType::i64, test_device());
  CHECK_THROWS_WITH_AS(uniform({}, x, 1, 0), "[uniform] there are no numbers from 1 to 0",
                       UsageError);
  CHECK_THROWS_WITH_AS(normal({}, x, 0, -1),
                       "[normal] the standard deviation must be 0 or more, got -1 (mean 0)",
                       UsageError);
  CHECK_THROWS_WITH_AS(uniform({}, labels, 0, 1), "[uniform] takes f32 or f64, got i64",
                       DTypeError);
  CHECK_THROWS_WITH_AS(dropout({}, x, 1, x, mask), "[dropout] p must be in [0, 1), got 1",
                       UsageError);
  CHECK_THROWS_WITH_AS(dropout({}, x, 0.5, x, x), "[dropout] mask: expected u8, got f32",
                       DTypeError);
  CHECK_THROWS_AS(dropout({}, x, 0.5, x, new_mask({3})), ShapeError);
  CHECK_THROWS_AS(dropout_backward(x, mask, -0.5, x, false), UsageError);
  CHECK_THROWS_AS(dropout_backward(x, mask, 0.5, varied<float>({2, 2}), false), ShapeError);
}
