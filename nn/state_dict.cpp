#include "lockstep/nn/state_dict.h"

#include <algorithm>

namespace lockstep::nn {
namespace {

// "'a', 'b' and 7 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t most = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i)
    text += fmt::format("{}'{}'", i ? ", " : "", names[i]);
  return names.size() > most ? fmt::format("{} and {} more", text, names.size() - most) : text;
}

void check_names(std::string_view owner, const LoadReport& report) {
  check<StateError>(report.missing.empty() || report.unexpected.empty(),
                    "[load_state_dict] the state lacks {} of {}, which has no {}",
                    listed(report.missing), owner, listed(report.unexpected));
  check<StateError>(report.missing.empty(), "[load_state_dict] the state lacks {} of {}",
                    listed(report.missing), owner);
  check<StateError>(report.unexpected.empty(), "[load_state_dict] {} has no {}", owner,
                    listed(report.unexpected));
}

}  // namespace

LoadReport load_tensors(std::string_view owner, const StateDict& own, const StateDict& state,
                        bool strict) {
  LoadReport report;
  for (const auto& [name, value] : own)
    if (!state.contains(name)) report.missing.push_back(name);
  for (const auto& [name, value] : state)
    if (!own.contains(name)) report.unexpected.push_back(name);
  if (strict) check_names(owner, report);
  for (const auto& [name, value] : state) {
    const auto found = own.find(name);
    if (found == own.end()) continue;
    const Tensor& here = found->second;
    check<StateError>(value.defined(), "[load_state_dict] '{}' is undefined in the state", name);
    check<StateError>(value.gradient_ref().tape == GradientRef::nothing,
                      "[load_state_dict] '{}' of the state is {}", name,
                      value.gradient_ref().tape == GradientRef::parameter
                          ? "the operand of a parameter: take its value()"
                          : "recorded on a tape: detach() it");
    check<ShapeError>(value.shape() == here.shape(),
                      "[load_state_dict] '{}' is {} in {} and {} in the state", name, here.shape(),
                      owner, value.shape());
    check<DTypeError>(value.dtype() == here.dtype(),
                      "[load_state_dict] '{}' is {} in {} and {} in the state", name, here.dtype(),
                      owner, value.dtype());
  }
  for (const auto& [name, value] : state)
    if (const auto found = own.find(name); found != own.end()) found->second.copy_from(value);
  return report;
}

std::int64_t count_in(std::string_view name, const Tensor& tensor) {
  const auto count = static_cast<std::int64_t>(tensor.item());
  check<StateError>(count >= 0, "[load_state_dict] '{}' is {} in the state, and counts something",
                    name, count);
  return count;
}

}  // namespace lockstep::nn
