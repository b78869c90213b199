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
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/hash.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

template <class T>
std::vector<Parameter> all_of(const std::vector<Group<T>>& groups) {
  std::vector<Parameter> all;
  for (const auto& group : groups)
    all.insert(all.end(), group.parameters.begin(), group.parameters.end());
  return all;
}

template <class Rule>
void check_ranges(const typename Rule::Options& options) {
  Rule::visit(options, [](std::string_view name, const auto& value, Range range = any_number) {
    check_range(Rule::name, name, value, range);
  });
  if constexpr (requires { Rule::check_together(options); }) Rule::check_together(options);
}

/// Makes what the item of this parameter lacks: zeros. Returns whether it lacked something. What a
/// recorded step allocates does not outlive it: throws StateError there.
template <class Item, class Options>
bool complete(Item& item, const Parameter& parameter, const Options& options) {
  bool lacked = false;
  kernels::visit_kept(item, options, [&](std::string_view name, Tensor& tensor, bool is_kept) {
    if (!is_kept || tensor.defined()) return;
    check<StateError>(!StepGraph::recording(),
                      "[step] {} has no {} yet, and a recorded step cannot make it: take this "
                      "step once outside of the recording",
                      parameter, name);
    tensor = zeros_like(item.value);
    lacked = true;
  });
  return lacked;
}

/// As before the first step on `value`, which makes a momentum that begins as the first gradient.
template <class Item, class Options>
Item first_state(const Parameter& parameter, const Tensor& value, const Options& options) {
  Item item{};
  item.value = value;
  if constexpr (requires { item.step; }) item.step = Tensor::zeros({}, DType::i64, value.device());
  if constexpr (!requires { item.first; }) complete(item, parameter, options);
  return item;
}

template <class Rule>
Grouped<Rule>::Grouped(std::vector<Group<Given>> groups, Options options)
    : Optimizer(all_of(groups)), options_(options) {
  check_ranges<Rule>(options_);
  for (auto& [parameters, given] : groups) {
    groups_.push_back({std::move(parameters), completed(given, options_)});
    kept_.push_back(make_kept(groups_.back()));
  }
}

/// `options`, where nothing is given. Both list the same fields in the same order.
template <class Rule>
auto Grouped<Rule>::completed(const Given& given, Options options) -> Options {
  std::vector<std::optional<double>> values;
  Rule::visit(given, [&](std::string_view, const auto& value, Range = {}) {
    values.push_back(value ? std::optional<double>(*value) : std::nullopt);
  });
  auto value = values.begin();
  Rule::visit(options, [&]<class T>(std::string_view, T& option, Range = {}) {
    if (const std::optional<double> here = *value++) option = static_cast<T>(*here);
  });
  return options;
}

// What is kept of a parameter lies at its place.
template <class Rule>
void Grouped<Rule>::check_members() const {
  check<StateError>(
      std::ranges::equal(groups_, kept_, {}, &Group<Options>::parameters, &Kept::parameters),
      "[{}] the parameters of its groups were changed: make a new optimizer, or add_param_group "
      "(groups() is there to change the options)",
      Rule::name);
}

template <class Rule>
auto Grouped<Rule>::make_kept(const Group<Options>& group) const -> Kept {
  check_ranges<Rule>(group.options);
  Kept kept{.parameters = group.parameters};
  for (const Parameter& parameter : group.parameters)
    kept.states.push_back(first_state<Item>(parameter, parameter.value(), group.options));
  kept.items.reserve(group.parameters.size());
  return kept;
}

template <class Rule>
void Grouped<Rule>::add_param_group(std::vector<Parameter> parameters, Given given) {
  check_members();
  const Options options = completed(given, options_);
  check_ranges<Rule>(options);
  include("add_param_group", parameters);
  Group<Options> group{std::move(parameters), options};
  Kept kept = make_kept(group);
  groups_.push_back(std::move(group));
  kept_.push_back(std::move(kept));
}

template <class Rule>
std::vector<GroupView> Grouped<Rule>::group_views() {
  StepGraph::refuse_in_recording("group_views");
  std::vector<GroupView> views;
  for (auto& [parameters, options] : groups_)
    views.push_back({parameters, options.lr, options.weight_decay});
  return views;
}

template <class Rule>
std::uint64_t Grouped<Rule>::options_digest() const {
  Fnv1a digest;
  digest.add(Rule::name);
  for (const auto& group : groups_)
    Rule::visit(group.options, [&](std::string_view, const auto& value, Range = {}) {
      digest.add(std::bit_cast<std::uint64_t>(static_cast<double>(value)));
    });
  return digest.value();
}

template <class Rule>
std::string Grouped<Rule>::options_text() const {
  std::string text;
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const std::string whose = groups_.size() == 1 ? std::string(Rule::name)
                                                  : fmt::format("group {} of {}", k, Rule::name);
    Rule::visit(groups_[k].options, [&](std::string_view option, const auto& value, Range = {}) {
      text += fmt::format("{}'s {} {}\n", whose, option, value);
    });
  }
  return text;
}

template <class Rule>
void Grouped<Rule>::check_options() const {
  check_members();
  for (const auto& group : groups_) check_ranges<Rule>(group.options);
}

template <class Rule>
void Grouped<Rule>::update() {
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const auto& [parameters, options] = groups_[k];
    auto& [members, states, items] = kept_[k];
    items.clear();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!takes_part(parameters[i])) continue;
      states[i].value = value_now(parameters[i], states[i].value);
      [[maybe_unused]] const bool lacked = complete(states[i], parameters[i], options);
      Item& item = items.emplace_back(states[i]);
      item.gradient = own_part(parameters[i], parameters[i].gradient_slot());
      item.fingerprint = fingerprint(parameters[i]);
      if constexpr (requires { item.first; }) item.first = lacked;
    }
    Rule::step(items, options);
  }
}

template <class Rule>
std::vector<const void*> Grouped<Rule>::places() const {
  std::vector<const void*> all;
  for (const Parameter& parameter : Optimizer::all()) all.push_back(parameter.value().raw());
  for (std::size_t k = 0; k < kept_.size(); ++k)
    for (const Item& item : kept_[k].states) {
      const auto note = [&](std::string_view, const Tensor& tensor, bool = true) {
        all.push_back(tensor.raw());
      };
      kernels::visit_kept(item, groups_[k].options, note);
      if constexpr (requires { item.step; }) note("step", item.step);
    }
  return all;
}

/// Calls visit(state, options) for what is kept of the parameter.
template <class Rule>
template <class Self, class Visit>
void Grouped<Rule>::visit_state(Self& self, const Parameter& parameter, const Visit& visit) {
  std::size_t at = self.index_of(parameter);
  for (std::size_t k = 0; k < self.kept_.size(); ++k) {
    auto& states = self.kept_[k].states;
    if (at < states.size()) return visit(states[at], self.groups_[k].options);
    at -= states.size();
  }
}

template <class Rule>
std::vector<StateTensor> Grouped<Rule>::state_of(const Parameter& parameter) const {
  std::vector<StateTensor> tensors;
  if (sharding()) return tensors;  // nothing that all ranks have
  const auto add = [&](std::string_view name, const Tensor& tensor, bool = true) {
    if (tensor.defined()) tensors.push_back({std::string(name), tensor});
  };
  visit_state(*this, parameter, [&](const Item& state, const Options& options) {
    kernels::visit_kept(state, options, add);
    if constexpr (requires { state.step; }) add("step", state.step);
  });
  return tensors;
}

template <class Rule>
void Grouped<Rule>::forget(const Parameter& parameter) {
  visit_state(*this, parameter, [&](Item& state, const Options& options) {
    state = first_state<Item>(parameter, own_part(parameter, parameter.value()), options);
  });
}

template <class Rule>
std::size_t Grouped<Rule>::state_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t k = 0; k < groups_.size(); ++k)
    for (const Item& state : kept_[k].states) {
      kernels::visit_kept(
          state, groups_[k].options,
          [&](std::string_view, const Tensor& tensor, bool) { bytes += tensor.bytes(); });
      if constexpr (requires { state.step; }) bytes += state.step.bytes();
    }
  return bytes;
}

template <class Rule>
void Grouped<Rule>::release_values() {
  for (Kept& kept : kept_) {
    kept.items.clear();
    for (Item& state : kept.states) state.value = {};
  }
}

template <class Rule>
void Grouped<Rule>::take_values() {
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const auto& [parameters, options] = groups_[k];
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      Item& state = kept_[k].states[i];
      state.value = own_part(parameter, parameter.value());
      const auto cut = [&](std::string_view, Tensor& tensor, bool) {
        if (tensor.defined() && sharding()) tensor = own_part(parameter, tensor).clone();
      };
      kernels::visit_kept(state, options, cut);
    }
  }
}

/// Calls visit(name in the state, tensor, whether a state must have it) for what is kept of the
/// parameter. A momentum that begins as the first gradient may not be there yet.
template <class Item, class Options>
void visit_named(Item& item, const Parameter& parameter, const Options& options,
                 const auto& visit) {
  const auto named = [&](std::string_view what, auto& tensor, bool is_kept) {
    visit(
        fmt::format("{}.{}", parameter.name(), what), tensor, is_kept && !requires { item.first; });
  };
  kernels::visit_kept(item, options, named);
  if constexpr (requires { item.step; }) named("step", item.step, true);
}

/// Of steps; all else that is kept is of the value's shape.
inline bool is_count(const Tensor& tensor) { return !is_differentiable(tensor.dtype()); }

inline std::string option_name(std::size_t group, std::string_view option) {
  return fmt::format("group {}.{}", group, option);
}
inline std::string group_name(const Parameter& parameter) { return parameter.name() + ".group"; }

template <class Rule>
nn::StateDict Grouped<Rule>::state_dict() const {
  check_members();
  nn::StateDict state = Optimizer::state_dict();
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const auto& [parameters, options] = groups_[k];
    Rule::visit(options, [&](std::string_view name, const auto& value, Range = {}) {
      state[option_name(k, name)] = Tensor::scalar(static_cast<double>(value), DType::f64);
    });
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      state[group_name(parameter)] = Tensor::scalar(static_cast<double>(k), DType::i64);
      visit_named(kept_[k].states[i], parameter, options,
                  [&](const std::string& name, const Tensor& tensor, bool needed) {
                    if (needed && !tensor.defined())  // the next step makes it
                      state[name] = zeros_like(parameter.value());
                    else if (tensor.defined())
                      state[name] = is_count(tensor) ? tensor : whole(parameter, tensor);
                  });
    }
  }
  return state;
}

/// Takes a number out of a state.
double take_number(nn::StateDict& state, const std::string& name, DType dtype);

template <class Rule>
void Grouped<Rule>::load_state_dict(const nn::StateDict& state) {
  check_between_steps("load_state_dict", all());
  check_members();
  nn::StateDict rest = state, own;
  auto groups = groups_;
  auto kept = kept_;
  for (std::size_t k = 0; k < groups.size(); ++k) {
    auto& [parameters, options] = groups[k];
    Rule::visit(options, [&]<class T>(std::string_view name, T& value, Range = {}) {
      const double saved = take_number(rest, option_name(k, name), DType::f64);
      if constexpr (std::is_same_v<T, bool>)
        check<UsageError>(saved == 0 || saved == 1, "[load_state_dict] '{}' must be 0 or 1, got {}",
                          option_name(k, name), saved);
      value = static_cast<T>(saved);
    });
    check_ranges<Rule>(options);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      const double group = take_number(rest, group_name(parameter), DType::i64);
      check<StateError>(group == static_cast<double>(k),
                        "[load_state_dict] {} is in group {}, and in group {} in the state",
                        parameter, k, group);
      visit_named(kept[k].states[i], parameter, options,
                  [&](const std::string& name, Tensor& tensor, bool needed) {
                    const auto saved = rest.find(name);
                    if (!needed && saved == rest.end()) return void(tensor = Tensor());
                    if (!tensor.defined()) tensor = zeros_like(kept[k].states[i].value);
                    own.emplace(name, tensor);
                    if (saved != rest.end() && is_count(tensor) && saved->second.numel() == 1)
                      nn::count_in(name, saved->second);
                    if (saved == rest.end() || !sharding() || is_count(tensor)) return;
                    const Shape& shape = parameter.value().shape();
                    check<ShapeError>(saved->second.shape() == shape,
                                      "[load_state_dict] '{}' is {}, and {} in the state", name,
                                      shape, saved->second.shape());
                    saved->second = own_part(parameter, saved->second);
                  });
    }
  }
  nn::load_tensors("the optimizer", own, rest);
  groups_ = std::move(groups);
  kept_ = std::move(kept);
}

}  // namespace lockstep::optim
