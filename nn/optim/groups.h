#pragma once
/// What the optimizers share in handling their groups: the members of Grouped (optimizer.h), for
/// the sources that instantiate it.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
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

/// A step that is being recorded (core/gpu/graph.h) holds while the options are as they are now.
template <class Options>
void depends_on_options(const std::vector<Group<Options>>& groups) {
  if (!StepGraph::recording()) return;
  StepGraph::depends_on([&now = groups, then = groups] {
    return std::ranges::equal(now, then, {}, &Group<Options>::options, &Group<Options>::options);
  });
}

/// Throws UsageError unless `value` is a number in `range`.
inline void check_range(std::string_view optimizer, std::string_view name, double value,
                        Range range) {
  check<UsageError>(std::isfinite(value) && value >= range.low && value < range.high,
                    "[{}] {} must be in {}{}, {}), got {}", optimizer, name,
                    std::isfinite(range.low) ? '[' : '(', range.low, range.high, value);
}

template <class Options>
void check_ranges(std::string_view optimizer, const Options& options) {
  for (const Option& option : options.list())
    check_range(optimizer, option.name, option.value, option.range);
  if constexpr (requires { options.check_together(); }) options.check_together();
}

/// Zeros to keep of a parameter. What a recorded step allocates does not outlive it: throws
/// StateError there.
inline void make_state(Tensor& kept, std::string_view name, const Parameter& parameter) {
  check<StateError>(!StepGraph::recording(),
                    "[step] '{}' has no {} yet, and a recorded step cannot make it: take this step "
                    "once outside of the recording",
                    parameter.name(), name);
  const Tensor& value = parameter.value();
  kept = Tensor::zeros(value.shape(), value.dtype(), value.device());
}

template <class Options, class State>
Grouped<Options, State>::Grouped(std::string_view name, std::vector<Group<Options>> groups)
    : Optimizer(all_of(groups)), name_(name), groups_(std::move(groups)) {
  for (const auto& group : groups_) kept_.push_back(make_kept(group));
}

template <class Options, class State>
auto Grouped<Options, State>::make_kept(const Group<Options>& group) const -> Kept {
  check_ranges(name_, group.options);
  Kept kept;
  for (const Parameter& parameter : group.parameters)
    kept.states.emplace_back(parameter.value(), group.options);
  kept.items.reserve(group.parameters.size());
  return kept;
}

template <class Options, class State>
void Grouped<Options, State>::add_param_group(std::vector<Parameter> parameters, Options options) {
  check_members(name_, groups_, all());
  check_ranges(name_, options);
  include("add_param_group", parameters);
  groups_.push_back({std::move(parameters), options});
  kept_.push_back(make_kept(groups_.back()));
}

template <class Options, class State>
std::vector<GroupView> Grouped<Options, State>::group_views() {
  std::vector<GroupView> views;
  for (auto& [parameters, options] : groups_)
    views.push_back({parameters, options.lr, options.weight_decay});
  return views;
}

template <class Options, class State>
std::uint64_t Grouped<Options, State>::options_digest() const {
  Fnv1a digest;
  digest.add(name_);
  for (const auto& group : groups_)
    for (const Option& option : group.options.list())
      digest.add(std::bit_cast<std::uint64_t>(option.value));
  return digest.value();
}

template <class Options, class State>
std::string Grouped<Options, State>::options_text() const {
  std::string text;
  for (std::size_t k = 0; k < groups_.size(); ++k)
    for (const auto& [option, value, range, is_flag] : groups_[k].options.list())
      text += fmt::format("{}'s {} {}\n", name_of_group(name_, k, groups_.size()), option,
                          is_flag ? (value != 0 ? "true" : "false") : fmt::to_string(value));
  return text;
}

template <class Options, class State>
void Grouped<Options, State>::check_options() const {
  check_members(name_, groups_, all());
  for (const auto& group : groups_) check_ranges(name_, group.options);
}

template <class Options, class State>
void Grouped<Options, State>::update() {
  depends_on_options(groups_);
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const auto& [parameters, options] = groups_[k];
    auto& [states, items] = kept_[k];
    items.clear();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!takes_part(parameters[i])) continue;
      items.push_back(states[i].item(parameters[i], options));
      items.back().fingerprint = fingerprint(parameters[i]);
    }
    step_items(items, options);
  }
}

template <class Options, class State>
const State* Grouped<Options, State>::find(const Parameter& parameter) const {
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const auto& parameters = groups_[k].parameters;
    const auto at = std::ranges::find(parameters, parameter);
    if (at != parameters.end())
      return &kept_[k].states[static_cast<std::size_t>(at - parameters.begin())];
  }
  return nullptr;
}

template <class Options, class State>
std::vector<StateTensor> Grouped<Options, State>::state_of(const Parameter& parameter) const {
  const State* const state = find(parameter);
  std::vector<StateTensor> tensors = state ? state->tensors() : std::vector<StateTensor>{};
  std::erase_if(tensors, [](const StateTensor& tensor) { return !tensor.value.defined(); });
  return tensors;
}

template <class Options, class State>
void Grouped<Options, State>::forget(const Parameter& parameter) {
  for (std::size_t k = 0; k < groups_.size(); ++k)
    for (std::size_t i = 0; i < groups_[k].parameters.size(); ++i)
      if (groups_[k].parameters[i] == parameter)
        kept_[k].states[i] = State(parameter.value(), groups_[k].options);
}

}  // namespace lockstep::optim
