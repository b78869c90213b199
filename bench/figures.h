#pragma once
/// What a contender's rounds amount to: their median is the figure, their minimum and maximum its
/// spread.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bench {

struct Figures {
  std::string name;
  std::vector<double> rounds;  ///< microseconds; at least one

  double median() const {
    std::vector<double> sorted = rounds;
    std::ranges::sort(sorted);
    const std::size_t n = sorted.size();
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
  }
  double min() const { return std::ranges::min(rounds); }
  double max() const { return std::ranges::max(rounds); }

  nlohmann::ordered_json json() const {
    return {{"name", name},
            {"median_us", median()},
            {"min_us", min()},
            {"max_us", max()},
            {"rounds_us", rounds}};
  }
};

}  // namespace bench
