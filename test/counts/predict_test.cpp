// Predictions: queues and occupancy by closed forms; published tables; what must not get slower.
#include "lockstep/tools/predict/predict.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/tools/facts/text.h"
#include "lockstep/tools/predict/document.h"
#include "lockstep/tools/predict/measured.h"
#include "lockstep/tools/predict/published.h"

namespace lockstep::predict {
namespace {

/// Errors of the predicted speeds; they must be in the order of the published ones.
std::vector<double> errors_in_order(const std::vector<Published>& rows) {
  std::vector<double> errors;
  double before = 0;
  for (const Published& row : rows) {
    CAPTURE(row.operation.name);
    const double speed = row.operation.flops / predict(row.operation, gpu_named(row.gpu)).seconds;
    CHECK(speed > before);
    before = speed;
    errors.push_back(std::abs(speed / row.measured - 1));
  }
  return errors;
}

void check_errors(const std::vector<double>& errors) {
  CHECK(median(errors) <= 0.15);
  CHECK(*std::ranges::max_element(errors) <= 0.35);
}

double seconds(const Product& product, const Gpu& gpu) {
  return predict(chosen_product(product, gpu), gpu).seconds;
}

}  // namespace

TEST_CASE("predict: customers go round a closed network as theory says") {
  CHECK(throughput(1, {3, 5}, 2) == doctest::Approx(1.0 / 10));
  CHECK(throughput(7, {4}, 0) == doctest::Approx(1.0 / 4));
  for (const int n : {1, 2, 5, 40})  // k equal stations: n / (n + k - 1) of one's rate
    CHECK(throughput(n, {2, 2, 2}, 0) == doctest::Approx(n / (n + 2.0) / 2));
  // The repairman: two machines that each run for 3 on average, and take 1 to repair.
  CHECK(throughput(2, {1}, 3) == doctest::Approx(2 / (3 + 1.25)));
  CHECK(throughput(1.5, {1}, 0) == doctest::Approx(1));
  CHECK(throughput(0, {1}, 1) == 0);
}

TEST_CASE("predict: occupancy is that of CUDA's calculator") {
  const auto blocks = [](int warps, int registers, int shared_bytes, const char* gpu) {
    return resident_blocks(
        {.kernel = "", .warps = warps, .registers = registers, .shared_bytes = shared_bytes},
        gpu_named(gpu));
  };
  CHECK(blocks(4, 168, 16384, "A6000") == 3);   // registers
  CHECK(blocks(32, 36, 8192, "A6000") == 1);    // threads: 1536
  CHECK(blocks(32, 32, 8192, "H100") == 2);     // threads: 2048
  CHECK(blocks(8, 40, 48 << 10, "A100") == 3);  // shared memory: 164 KiB
  CHECK(blocks(1, 32, 0, "A6000") == 16);       // blocks
  CHECK(blocks(12, 168, 147456, "H100") == 1);
  CHECK_THROWS_AS(blocks(4, 32, 200 << 10, "A6000"), UsageError);
  CHECK_THROWS_WITH_AS(gpu_named("H1000"), doctest::Contains("there are: A6000, A100"), UsageError);
}

TEST_CASE("predict: Boehm's kernels come in the right order, at about their speed") {
  const std::vector<Published> rows = published_boehm();
  CHECK(rows.size() == 10);
  check_errors(errors_in_order(rows));
}

TEST_CASE("predict: fast.cu's kernels come in the right order, at about their speed") {
  const std::vector<Published> rows = published_fast_cu();
  CHECK(rows.size() == 7);
  check_errors(errors_in_order(rows));
}

TEST_CASE("predict: our products in f32 take about what an H100 took for them") {
  const std::string text = facts::read_file(LOCKSTEP_SOURCE_DIR "/docs/benchmarks.md");
  const std::vector<Measured> rows = measured_products(text);
  CHECK(rows.size() == 3 * 29 - 1);  // of one the tile is not known
  CHECK(rows[1].product.precision == Precision::tf32);
  CHECK(rows[1].product.transpose_b);
  CHECK(rows[1].microseconds == 5.18);
  CHECK(rows[0].plan == "8 32x32 /4");
  CHECK(operation_of(rows[0]).name == rows[0].plan);
  CHECK(operation_of(rows[0]).launches.size() == 2);
  CHECK(chosen_product(rows[0].product, gpu_named("H100")).launches.size() == 1);
  CHECK_THROWS_AS(product_named("8 32x33", rows[0].product, gpu_named("H100")), UsageError);
  CHECK_THROWS_AS(product_named("eight", rows[0].product, gpu_named("H100")), UsageError);
  std::vector<double> errors;
  for (const Measured& row : rows) {
    const Operation operation = operation_of(row);
    if (row.product.precision != Precision::f32 || bound_by_host(row, operation)) continue;
    const double predicted = predict(operation, gpu_named("H100")).microseconds();
    errors.push_back(std::abs(predicted / row.microseconds - 1));
  }
  CHECK(errors.size() > 20);
  check_errors(errors);
  CHECK_THROWS_AS(measured_products("| product | f32 |\n"), Error);
}

TEST_CASE("predict: layers in bf16 reach their share, where a launch leaves room for it") {
  const Gpu& gpu = gpu_named("H100");
  int possible = 0;
  for (const LayerProduct& product : layer_products()) {
    CAPTURE(product.batch);
    CAPTURE(product.width);
    CAPTURE(product.what);
    const bool narrow = product.what == "dW" && product.width == 256 && product.batch == 8192;
    const double least = narrow                  ? 0.40
                         : product.batch == 128  ? 0.35
                         : product.width == 1024 ? 0.60
                         : product.width > 2048  ? 0.78  // of the 85 % that are aimed at
                                                 : 0;
    const Operation operation = chosen_product(product.in(Precision::bf16), gpu);
    const double roof = roof_seconds(operation, gpu);
    if (least == 0 || roof / (roof + launch_seconds) < least) continue;
    ++possible;
    CHECK(predict(operation, gpu).share_of_roof >= least);
  }
  CHECK(possible == 25);
}

TEST_CASE("predict: bytes alone take what the memory takes for them") {
  Operation copy{.name = "copy",
                 .launches = {{.kernel = "copy", .blocks = 1 << 16, .warps = 8, .steps = 1}},
                 .fewest_bytes = 8e9};
  copy.launches[0].memory_bytes = copy.fewest_bytes;
  const Gpu& gpu = gpu_named("A100");
  const Prediction p = predict(copy, gpu);
  CHECK(p.limiter == Limiter::memory);
  CHECK(p.seconds == doctest::Approx(8e9 / (0.9 * 2039e9)).epsilon(0.01));
  CHECK(p.share_of_roof == doctest::Approx(0.9).epsilon(0.01));
}

TEST_CASE("predict: waves that do not fill the GPU are lost") {
  Work work{.kernel = "",
            .warps = 4,
            .registers = 255,
            .steps = 1000,
            .step = {.instructions = 400, .fma = 400}};
  const Gpu& gpu = gpu_named("H100");
  const int room = resident_blocks(work, gpu) * gpu.processors;
  work.blocks = room;
  const double whole = predict(work, gpu).seconds;
  CHECK(predict(work, gpu).lost_to_waves == doctest::Approx(0).epsilon(0.01));
  work.blocks = room + 1;
  CHECK(predict(work, gpu).seconds > 1.4 * whole);
  CHECK(predict(work, gpu).lost_to_waves > 0.2);
}

TEST_CASE("predict: a better GPU or less work never takes longer") {
  for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16})
    for (const std::int64_t m : {100, 1024, 5000})
      for (const Gpu& gpu : gpus()) {
        Product product{m, 1024, 2048, false, true, precision};
        product.result_bytes = product.bytes();
        CAPTURE(gpu.name);
        CAPTURE(m);
        const Operation operation = chosen_product(product, gpu);
        const double now = predict(operation, gpu).seconds;
        Gpu better = gpu;
        better.processors += 7;
        CHECK(predict(operation, better).seconds <= now * 1.0001);
        better = gpu;
        better.memory_bytes *= 2;
        better.l2_bytes *= 2;
        CHECK(predict(operation, better).seconds <= now);
        better = gpu;
        better.memory_latency *= 2;
        CHECK(predict(operation, better).seconds >= now);
        Operation more = operation;
        for (Work& work : more.launches) work.steps *= 2;
        CHECK(predict(more, gpu).seconds > now);
        product.k = 4096;
        CHECK(seconds(product, gpu) > now);
      }
}

}  // namespace lockstep::predict
