#include "lockstep/kernels/random.h"

#include <algorithm>

#include "kernels/support.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

using nlohmann::json;

Tensor new_mask(const Shape& shape) { return Tensor::full(shape, 7, DType::u8, test_device()); }

}  // namespace

TEST_CASE("dropout keeps what cuRAND's numbers in PyTorch's layout keep") {
  const json stored = json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/curand.json"));
  CHECK(stored.size() == 2);
  for (const json& entry : stored) {
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
  }
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
  CHECK_THROWS_WITH_AS(dropout({}, x, 1, x, mask), "[dropout] p must be in [0, 1), got 1",
                       UsageError);
  CHECK_THROWS_WITH_AS(dropout({}, x, 0.5, x, x), "[dropout] mask: expected u8, got f32",
                       DTypeError);
  CHECK_THROWS_AS(dropout({}, x, 0.5, x, new_mask({3})), ShapeError);
  CHECK_THROWS_AS(dropout_backward(x, mask, -0.5, x, false), UsageError);
  CHECK_THROWS_AS(dropout_backward(x, mask, 0.5, varied<float>({2, 2}), false), ShapeError);
}
