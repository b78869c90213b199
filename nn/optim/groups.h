#pragma once
/// What the optimizers share in handling their groups.

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/hash.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

template <class Options>
std::vector<Parameter> all_of(const std::vector<Group<Options>>& groups) {
  std::vector<Parameter> all;
  for (const auto& group : groups)
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  return all;
}

/// A step that is being recorded (core/gpu/graph.h) holds while the options are as they are now.
template <class Options>
void depends_on_options(const std::vector<Group<Options>>& groups) {
  if (!StepGraph::recording()) return;
  for (const auto& group : groups)
    StepGraph::depends_on([&now = group.options, then = group.options] { return now == then; });
}

/// Adds numbers to a hash, to their last bits.
inline void add(Fnv1a& hash, std::initializer_list<double> numbers) {
  for (const double number : numbers) hash.add(std::bit_cast<std::uint64_t>(number));
}

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Throws UsageError unless low <= value < high (and value is a number).
inline void check_range(std::string_view optimizer, std::string_view name, double value, double low,
                        double high) {
  check<UsageError>(std::isfinite(value) && value >= low && value < high,
                    "[{}] {} must be in [{}, {}), got {}", optimizer, name, low, high, value);
}

}  // namespace lockstep::optim
