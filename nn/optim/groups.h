#pragma once
/// What the optimizers share in handling their groups.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
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

/// "SGD"; of several groups "group 1 of SGD".
inline std::string name_of_group(std::string_view optimizer, std::size_t group,
                                 std::size_t groups) {
  return groups == 1 ? std::string(optimizer) : fmt::format("group {} of {}", group, optimizer);
}

/// Throws StateError unless the groups hold the parameters that they held at construction: what is
/// kept of each lies at its place.
template <class Options>
void check_members(std::string_view optimizer, const std::vector<Group<Options>>& groups,
                   const std::vector<Parameter>& all) {
  std::size_t at = 0;
  bool same = true;
  for (const auto& group : groups)
    for (const Parameter& parameter : group.parameters) {
      same = same && at < all.size() && parameter == all[at];
      ++at;
    }
  check<StateError>(same && at == all.size(),
                    "[{}] the parameters of its groups were changed, from {} to {}: make a new "
                    "optimizer (only the options may change)",
                    optimizer, all.size(), at);
}

/// The group of a parameter and its index there; {groups.size(), 0} if it is in none.
template <class Options>
std::pair<std::size_t, std::size_t> find(const std::vector<Group<Options>>& groups,
                                         const Parameter& parameter) {
  for (std::size_t k = 0; k < groups.size(); ++k) {
    const auto& all = groups[k].parameters;
    const auto at = std::ranges::find(all, parameter);
    if (at != all.end()) return {k, static_cast<std::size_t>(at - all.begin())};
  }
  return {groups.size(), 0};
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
