#include "lockstep/tools/predict/measured.h"

#include <algorithm>
#include <regex>
#include <sstream>

#include "lockstep/core/error.h"

namespace lockstep::predict {

std::vector<Measured> measured_products(const std::string& benchmarks) {
  constexpr const char* heading = "| product | f32 | tf32 | bf16 |";
  static const std::regex row(
      R"(\| (\d+)x(\d+)x(\d+) ([NT])([NT]) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|)");
  static const std::regex cell(R"(([0-9.]+) \([0-9.]+\), (\d+ \d+x\d+( /\d+)?))");
  std::istringstream text(benchmarks);
  std::vector<Measured> all;
  bool in_table = false;
  for (std::string line; std::getline(text, line);) {
    in_table = line == heading || (in_table && line.starts_with("|"));
    std::smatch found;
    if (!in_table || !std::regex_match(line, found, row)) continue;
    Product product{std::stoll(found[1]), std::stoll(found[2]), std::stoll(found[3]),
                    found[4] == "T", found[5] == "T"};
    for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16}) {
      product.precision = precision;
      product.result_bytes = product.bytes();
      const std::string entry = found[6 + static_cast<int>(precision)];
      std::smatch timed;
      if (std::regex_match(entry, timed, cell))
        all.push_back({product, std::stod(timed[1]), timed[2]});
    }
  }
  check<Error>(!all.empty(), "predict: the document has no table '{}'", heading);
  return all;
}

Operation operation_of(const Measured& measured) {
  Gpu gpu = gpu_named("H100");
  gpu.clusters = false;
  return product_named(measured.plan, measured.product, gpu);
}

bool bound_by_host(const Measured& measured, const Operation& operation) {
  return measured.microseconds < 7 * static_cast<double>(operation.launches.size());
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace lockstep::predict
