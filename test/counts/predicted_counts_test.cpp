// What predictions take a rung to do is what it is counted to do; and softmax in two readings.
#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/tools/counts/predicted.h"
#include "lockstep/tools/predict/published.h"

namespace lockstep::counts {
namespace {

using predict::Operation;
using predict::Precision;
using predict::Product;

/// Of all warps, blocks and steps of a launch.
struct Totals {
  double requests = 0, from_l2 = 0, to_l2 = 0, barriers = 0;
};

Totals totals(const predict::Work& work) {
  Totals all;
  const double warps = static_cast<double>(work.blocks) * work.warps;
  for (const predict::Access& access : work.step.accesses)
    all.requests += access.requests * work.steps * warps;
  all.from_l2 = work.step.from_l2 * work.steps * warps;
  all.to_l2 = work.ends.to_l2 * warps;
  const double at_end = work.meeting > 0 ? 1 : 0;  // before sums take the place of tiles
  all.barriers = (work.barriers * work.steps + at_end) * static_cast<double>(work.blocks);
  return all;
}

Totals totals(const Launch& launch) {
  const auto bytes = [&](Class what) {
    return 32.0 * static_cast<double>(launch.of(what).sectors);
  };
  return {.requests = static_cast<double>(launch.of(Class::global_load).requests),
          .from_l2 = bytes(Class::global_load) + bytes(Class::copy_load) +
                     static_cast<double>(launch.box_bytes),
          .to_l2 = bytes(Class::global_store),
          .barriers = static_cast<double>(launch.barriers())};
}

/// The number in the name: "gemm_04_tile_1d_f32".
int rung_of(const Counted& counted) { return std::stoi(counted.problem.name.substr(5, 2)); }

void check_rung(const Counted& counted, const Product& product) {
  const int rung = rung_of(counted);
  CAPTURE(counted.problem.name);
  CAPTURE(counted.problem.size);
  const Operation operation = product_on_rung(rung, product, predict::gpu_named("H100"));
  REQUIRE(operation.launches.size() == counted.launches.size());
  for (std::size_t i = 0; i < counted.launches.size(); ++i) {
    CAPTURE(i);
    const predict::Work& work = operation.launches[i];
    const Totals scaled = totals(work), real = totals(counted.launches[i]);
    CHECK(scaled.to_l2 == real.to_l2);
    if (rung <= 2) {  // L1 serves most of their requests
      CHECK(scaled.requests == real.requests);
      continue;
    }
    if (work.kernel == "product" || work.kernel == "hopper_product")
      CHECK(scaled.from_l2 == real.from_l2);
    if (work.kernel == "product") CHECK(scaled.barriers == real.barriers);
  }
}

void check_rungs(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a,
                 bool transpose_b) {
  for (const Counted& counted : count(rung_problems(m, n, k, transpose_a, transpose_b))) {
    const int rung = rung_of(counted);
    Product product{m, n, k, transpose_a, transpose_b};
    if (rung == 9 || rung == 12) product.precision = Precision::tf32;
    if (rung == 10 || rung == 11) product.precision = Precision::bf16;
    product.result_bytes = product.bytes();
    check_rung(counted, product);
  }
}

}  // namespace

TEST_CASE("predict: a rung's work, scaled by sizes, is what is counted") {
  check_rungs(256, 256, 64, false, false);
  check_rungs(384, 256, 192, false, true);
  check_rungs(128, 256, 512, true, false);
}

TEST_CASE("predict: softmax in one reading beats two by as much as Quack's") {
  const std::vector<Counted> counted = count(chosen({"softmax"}));
  const predict::Readings readings = softmax_readings(counted);
  const double ratio = readings.two.seconds / readings.one.seconds;
  const double published = predict::quack_one_reading / predict::quack_two_readings;
  CHECK(std::abs(ratio / published - 1) <= 0.15);
  CHECK(readings.one.limiter == predict::Limiter::memory);
  // More rows are more blocks of the same, and nothing else.
  const Operation once = operation_of(counted[1]), twice = operation_of(counted[1], 2);
  CHECK(twice.launches[0].blocks == 2 * once.launches[0].blocks);
  CHECK(twice.launches[0].memory_bytes == 2 * once.launches[0].memory_bytes);
  CHECK(twice.launches[0].step.from_l2 == once.launches[0].step.from_l2);
}

TEST_CASE("predict: a product is named by its sizes") {
  const predict::Gpu& gpu = predict::gpu_named("H100");
  const std::string text = predicted_product("4096x4096x1024 NT", gpu);
  CHECK(text.find("bf16 on rung 11 256x256") != std::string::npos);
  CHECK(text.find("f32 on rung 8 128x128") != std::string::npos);
  CHECK_THROWS_WITH_AS(predicted_product("4096x4096", gpu), doctest::Contains("'4096x4096'"),
                       UsageError);
  CHECK_THROWS_AS(predicted_product("0x1x1", gpu), UsageError);
}

}  // namespace lockstep::counts
