#include "lockstep/tools/counts/predicted.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "lockstep/core/error.h"

namespace lockstep::counts {

using predict::Access;
using predict::Gpu;
using predict::Operation;
using predict::Precision;
using predict::Prediction;

namespace {

double number(std::uint64_t n) { return static_cast<double>(n); }

/// Of one warp, on average. Global memory passes through L1 by lines of four sectors.
Access access_of(const Launch& launch, Class what, double warps) {
  const Sum& sum = launch.of(what);
  const std::uint64_t passes =
      simt::counters::is_global(what) ? (sum.sectors + 3) / 4 : sum.wavefronts;
  return {number(sum.requests) / warps, number(passes) / warps};
}

predict::Work work_of(const Launch& launch, double times) {
  const auto volume = [](const std::array<unsigned, 3>& v) {
    return std::int64_t{v[0]} * v[1] * v[2];
  };
  constexpr double loads_at_once = 4;
  const std::int64_t blocks = volume(launch.grid);
  predict::Work work{
      .kernel = short_name(launch.kernel),
      .blocks = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(number(static_cast<std::uint64_t>(blocks)) * times)),
      .warps = static_cast<int>((volume(launch.block) + 31) / 32)};
  const double warps = static_cast<double>(blocks * work.warps);
  const double loads = number(launch.of(Class::global_load).requests) / warps;
  work.steps = std::max(1.0, loads / loads_at_once);
  for (const Class what :
       {Class::global_load, Class::shared_load, Class::shared_store, Class::shared_atomic}) {
    Access access = access_of(launch, what, warps);
    access.requests /= work.steps, access.wavefronts /= work.steps;
    work.step.accesses.push_back(access);
  }
  work.step.from_l2 = 32 * number(launch.of(Class::global_load).sectors) / warps / work.steps;
  work.ends.accesses = {access_of(launch, Class::global_store, warps),
                        access_of(launch, Class::global_atomic, warps)};
  work.ends.to_l2 = 32 * number(launch.of(Class::global_store).sectors) / warps;
  work.barriers =
      static_cast<int>(number(launch.barriers()) / static_cast<double>(blocks) / work.steps);
  work.memory_bytes = times * number(launch.read + launch.written);
  return work;
}

constexpr const char* predicted_headings =
    "| operation | size | predicted us | limiter | share of roof | waves | blocks | occupancy |\n"
    "|---|---|---|---|---|---|---|---|";

std::string predicted_row(const std::string& name, const std::string& size, const Prediction& p) {
  return fmt::format("\n| {} | {} | {:.1f} | {} | {:.0f} % | {:.2f} | {} | {:.0f} % |", name, size,
                     p.microseconds(), name_of(p.limiter), 100 * p.share_of_roof, p.waves, p.blocks,
                     100 * p.occupancy);
}

const Counted& counted_at(const std::vector<Counted>& all, const std::string& name,
                          const std::string& size) {
  const auto found = std::ranges::find_if(all, [&](const Counted& counted) {
    return counted.problem.name == name && counted.problem.size == size;
  });
  check<Error>(found != all.end(), "[count] {} {} was not counted", name, size);
  return *found;
}

}  // namespace

Operation operation_of(const Counted& counted, double times) {
  Operation operation{.name = counted.problem.name,
                      .fewest_bytes = times * number(counted.fewest_read + counted.fewest_written)};
  for (const Launch& launch : counted.launches)
    operation.launches.push_back(work_of(launch, times));
  return operation;
}

std::string predicted_table(const std::vector<Counted>& all, const Gpu& gpu) {
  std::string text = predicted_headings;
  for (const Counted& counted : all)
    text += predicted_row(counted.problem.name, counted.problem.size,
                          predict::predict(operation_of(counted), gpu));
  return text;
}

std::string predicted_product(const std::string& size, const Gpu& gpu) {
  static const std::regex pattern("(\\d{1,7})x(\\d{1,7})x(\\d{1,7})(?: ([NT])([NT]))?");
  std::smatch found;
  check<UsageError>(std::regex_match(size, found, pattern),
                    "--product takes sizes as in 4096x4096x1024 or '128x256x512 NT', not '{}'",
                    size);
  predict::Product product{std::stoll(found[1]), std::stoll(found[2]), std::stoll(found[3]),
                           found[4] == "T", found[5] == "T"};
  check<UsageError>(product.m > 0 && product.n > 0 && product.k > 0,
                    "--product takes sizes from 1 on, not '{}'", size);
  std::string text = predicted_headings;
  for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16}) {
    product.precision = precision;
    product.result_bytes = product.bytes();
    const Operation operation = chosen_product(product, gpu);
    text += predicted_row(fmt::format("{} on rung {}", name_of(precision), operation.name), size,
                          predict::predict(operation, gpu));
  }
  return text;
}

predict::Readings softmax_readings(const std::vector<Counted>& all) {
  const Gpu& gpu = predict::gpu_named("H100");
  constexpr double times = 4096;  // of 2^16 elements
  return {predict::predict(operation_of(counted_at(all, "softmax", "4x16384"), times), gpu),
          predict::predict(operation_of(counted_at(all, "softmax", "2x32768"), times), gpu)};
}

}  // namespace lockstep::counts
