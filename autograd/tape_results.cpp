// What a tape shows to a watcher of results (core/trace/results.h).

#include "lockstep/autograd/tape_pass.h"

namespace lockstep {

using detail::Node;
using trace::Place;

namespace {

// A first dimension that counts samples. (A loss of lanes is one number for them all.)
const Lanes* lanes_of(const Node& node, const Lanes* lanes) {
  return node.belongs == Node::Belongs::samples ? lanes : nullptr;
}

std::string_view parameter_of(const Node& node) {
  for (const Node::Input& input : node.inputs)
    if (input.parameter) return input.parameter->name;
  return {};
}

void show_parameters(const Node& node) {
  for (const Node::Input& input : node.inputs)
    if (const auto& parameter = input.parameter)
      trace::watcher->see({.place = Place::parameter,
                           .operation = node.operation,
                           .name = parameter->name,
                           .value = parameter->value,
                           .of_world = !parameter->kept_local});
}

}  // namespace

void show_output(const Node& node, const Tensor& output, std::span<const Tensor* const> inputs,
                 const Lanes* lanes) {
  show_parameters(node);
  for (const Tensor* input : inputs)
    if (input->defined() && input->gradient_ref().tape == GradientRef::nothing)
      trace::watcher->see({.place = Place::input,
                           .operation = node.operation,
                           .name = parameter_of(node),
                           .value = *input,
                           .lanes = lanes && input->rank() > 0 && lanes->counts(input->size(0))
                                        ? lanes_of(node, lanes)
                                        : nullptr});
  trace::watcher->see({.place = Place::forward,
                       .operation = node.operation,
                       .name = parameter_of(node),
                       .value = output,
                       .lanes = lanes_of(node, lanes),
                       .node = &node});
}

void show_gradient(const Node& node, const Lanes* lanes) {
  trace::watcher->see({.place = Place::backward,
                       .operation = node.operation,
                       .name = parameter_of(node),
                       .value = node.gradient,
                       .lanes = lanes_of(node, lanes),
                       .node = &node});
}

void show_ready(const Node& node, const detail::ParameterState& parameter) {
  trace::watcher->see({.place = Place::gradient,
                       .operation = node.operation,
                       .name = parameter.name,
                       .value = parameter.slot});
}

}  // namespace lockstep
