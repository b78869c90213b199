// The generator beside PyTorch's numbers (test/reference/make_generator.py).
#include "lockstep/core/generator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/device.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

const Json& reference() {
  static const Json json = Json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/generator.json"));
  return json;
}

std::uint64_t hash_of(const Tensor& values) {
  std::uint64_t hash = 0;
  for (std::int64_t value : values.span<std::int64_t>())
    hash = hash * 1000003 + static_cast<std::uint64_t>(value);
  return hash;
}

DType dtype_asked(const Json& call) { return call["dtype"] == "f32" ? DType::f32 : DType::f64; }

// What our generator answers to a recorded call.
Tensor answer(Generator& generator, const Json& call) {
  const Shape shape{call["n"].get<std::int64_t>()};
  if (call["op"] == "randperm") return generator.randperm(call["n"]);
  if (call["op"] == "randint") {
    const Tensor out = Tensor::empty(shape, DType::i64);
    generator.randint(call["low"], call["high"], out);
    return out;
  }
  const Tensor out = Tensor::empty(shape, dtype_asked(call));
  if (call["op"] == "uniform")
    generator.uniform(out, call["low"], call["high"]);
  else
    generator.normal(out, call["mean"], call["std"]);
  return out;
}

// The largest difference from the recorded values.
double error_of(const Tensor& got, const Json& values) {
  REQUIRE(got.numel() == static_cast<std::int64_t>(values.size()));
  double error = 0;
  visit_any(got.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using Number = std::conditional_t<std::is_arithmetic_v<T>, T, double>;
    const auto span = got.span<T>();
    for (std::size_t i = 0; i < span.size(); ++i) {
      const auto expected = values[i].get<Number>();
      const double difference =
          static_cast<Number>(span[i]) == expected
              ? 0
              : std::abs(static_cast<double>(span[i]) - static_cast<double>(expected));
      error = std::max(error, std::isnan(difference) ? 1e300 : difference);
    }
  });
  return error;
}

void compare(const Json& stream) {
  Generator generator(stream["seed"].get<std::uint64_t>());
  for (const Json& call : stream["calls"]) {
    CAPTURE(stream["seed"].dump());
    CAPTURE(call.dump());
    const Tensor got = answer(generator, call);
    if (call.contains("hash")) {
      CHECK(hash_of(got) == call["hash"].get<std::uint64_t>());
    } else if (call["op"] == "normal") {
      const double scale = std::max(1.0, call["std"].get<double>());
      CHECK(error_of(got, call["values"]) <= scale * (got.dtype() == DType::f32 ? 1e-6 : 1e-13));
    } else {
      CHECK(error_of(got, call["values"]) == 0);
    }
  }
}

TEST_CASE("generator: every call of every stream agrees with PyTorch") {
  REQUIRE(reference()["streams"].size() == 6);
  for (const Json& stream : reference()["streams"]) compare(stream);
}

// 1.7 GB and some seconds: run it with --no-skip after a change of randperm.
TEST_CASE("generator: randperm of more than 2^32 / 20 elements" * doctest::skip()) {
  for (const Json& stream : reference()["huge"]) compare(stream);
}

TEST_CASE("generator: the default seed is PyTorch's") {
  CHECK(Generator::default_seed == reference()["default_seed"].get<std::uint64_t>());
  CHECK(Generator().seed() == Generator::default_seed);
}

TEST_CASE("generator: seeding again starts over and forgets the cached normal") {
  Generator generator(5);
  const Tensor first = Tensor::empty({3}), again = Tensor::empty({3});
  generator.normal(first);  // leaves a fourth value behind
  generator.manual_seed(5);
  generator.normal(again);
  CHECK(first.to_vector<float>() == again.to_vector<float>());
  generator.manual_seed(6);
  CHECK(generator.seed() == 6);
  generator.normal(again);
  CHECK(first.to_vector<float>() != again.to_vector<float>());
}

TEST_CASE("generator: a state that is set gives the same stream, a normal that waits included") {
  const Tensor one = Tensor::empty({}), many = Tensor::empty({700});
  const auto draw = [&](Generator& from) {
    std::vector<float> values;
    for (int i = 0; i < 3; ++i) {
      from.normal(one);
      values.push_back(static_cast<float>(one.item()));
    }
    from.uniform(many);
    for (const float value : many.to_vector<float>()) values.push_back(value);
    return values;
  };
  Generator other(1);
  Tensor state;
  for (const int before : {0, 1, 2, 3})  // of an odd number, one of a pair is left over
    for (const int meanwhile : {0, 1, 2}) {
      CAPTURE(before);
      CAPTURE(meanwhile);
      Generator generator(12);
      for (int i = 0; i < before; ++i) generator.normal(one);
      state = generator.state();
      for (int i = 0; i < meanwhile; ++i) other.normal(one);
      other.set_state(state);
      CHECK(other.seed() == 12);
      CHECK(draw(generator) == draw(other));
    }
  const Tensor bad = state.clone();
  bad.data<std::int64_t>()[624] = 625;
  CHECK_THROWS_AS(other.set_state(bad), UsageError);
  CHECK_THROWS_AS(other.set_state(Tensor::zeros({3}, DType::i64)), UsageError);
  CHECK_THROWS_AS(other.set_state(Tensor{}), UsageError);
}

TEST_CASE("generator: moments of large samples") {
  Generator generator(1);
  const std::int64_t n = 200000;
  const Tensor out = Tensor::empty({n}, DType::f64);
  const auto moments = [&] {
    double sum = 0, squares = 0;
    for (double v : out.span<double>()) sum += v, squares += v * v;
    const double mean = sum / n;
    return std::pair(mean, squares / n - mean * mean);
  };
  // Bounds: five standard errors of the mean, and of the variance.
  generator.uniform(out, -1, 3);
  CHECK(moments().first == doctest::Approx(1).epsilon(0.013));
  CHECK(moments().second == doctest::Approx(16.0 / 12).epsilon(0.01));
  generator.normal(out, 2, 3);
  CHECK(std::abs(moments().first - 2) < 0.034);
  CHECK(std::abs(moments().second - 9) < 0.15);
}

TEST_CASE("generator: randperm is a permutation, randint stays in its range") {
  Generator generator(9);
  for (std::int64_t n : {0, 1, 2, 7, 1000}) {
    std::vector<std::int64_t> p = generator.randperm(n).to_vector<std::int64_t>();
    std::ranges::sort(p);
    REQUIRE(p.size() == static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < p.size(); ++i) CHECK(p[i] == static_cast<std::int64_t>(i));
  }
  const Tensor out = Tensor::empty({1000}, DType::i64);
  generator.randint(-3, 4, out);
  const auto [low, high] = std::ranges::minmax(out.span<std::int64_t>());
  CHECK(low == -3);
  CHECK(high == 3);
}

TEST_CASE("generator: the default generator belongs to the thread") {
  manual_seed(3);
  const Tensor here = Tensor::empty({4}), there = Tensor::empty({4}), fresh = Tensor::empty({4});
  std::thread([&] {
    default_generator().uniform(fresh);
    manual_seed(3);
    default_generator().uniform(there);
  }).join();
  default_generator().uniform(here);
  CHECK(here.to_vector<float>() == there.to_vector<float>());
  CHECK(here.to_vector<float>() != fresh.to_vector<float>());
}

TEST_CASE("generator: arguments that make no sense") {
  Generator generator(0);
  const Tensor f = Tensor::empty({2}), i = Tensor::empty({2}, DType::i64);
  const std::uint32_t versions = f.storage().version() + i.storage().version();
  CHECK_THROWS_AS(generator.uniform(f, 1, 0), UsageError);
  CHECK_THROWS_AS(generator.uniform(f, 0, NAN), UsageError);
  CHECK_THROWS_AS(generator.uniform(f, -3e38, 3e38), UsageError);  // the width overflows f32
  CHECK_THROWS_AS(generator.uniform(i), DTypeError);
  CHECK_THROWS_AS(generator.normal(f, 0, -1), UsageError);
  CHECK_THROWS_AS(generator.normal(f, 0, NAN), UsageError);
  CHECK_THROWS_AS(generator.normal(i), DTypeError);
  CHECK_THROWS_AS(generator.randint(0, 9, f), DTypeError);
  CHECK_THROWS_WITH_AS(generator.randint(4, 4, i),
                       "[randint] there is no integer from 4 to below 4", UsageError);
  CHECK(f.storage().version() + i.storage().version() == versions);  // nothing was written
  const Tensor far = Tensor::empty({20}, DType::f32, test::test_device());
  if (!test::on_cpu()) {  // the numbers are made on the processor
    CHECK_THROWS_AS(generator.uniform(far), DeviceError);
    CHECK_THROWS_AS(generator.normal(far), DeviceError);
    CHECK_THROWS_AS(generator.randint(0, 2, Tensor::empty({2}, DType::i64, test::test_device())),
                    DeviceError);
  }
  CHECK_THROWS_WITH_AS(generator.randperm(-1),
                       "[randperm] the number of elements must be 0 or more, got -1", UsageError);
}

}  // namespace
}  // namespace lockstep
