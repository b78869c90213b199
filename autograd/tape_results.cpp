// What a tape shows to a watcher of results (core/trace/results.h).

#include "lockstep/autograd/tape_pass.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep {

using detail::Node;
using trace::Place;

namespace {

// A first dimension that counts samples. (A loss of lanes is one number for them all.)
const Lanes* lanes_of(const Node& node, const Lanes* lanes) {
  return node.rows == Node::Rows::samples ? lanes : nullptr;
}

std::string_view parameter_of(const Node& node) {
  for (const Node::Input& input : node.inputs)
    if (input.parameter) return input.parameter->name;
  return {};
}

void show_parameters(const Node& node) {
  for (const Node::Input& input : node.inputs)
    if (const auto& parameter = input.parameter)
      trace::here.watcher->see({.place = Place::parameter,
                                .operation = node.operation,
                                .name = parameter->name,
                                .value = parameter->value,
                                .of_world = !parameter->kept_local});
}

}  // namespace

void show_output(const Node& node, const Tensor& output, std::span<const Operand> operands,
                 Makes makes, const Lanes* lanes) {
  show_parameters(node);
  for (const Operand& operand : operands)
    if (const Tensor& x = *operand.tensor;
        x.defined() && x.gradient_ref().tape == GradientRef::nothing &&
        (makes != Makes::loss || is_any_floating(x.dtype())))  // labels show in the loss
      trace::here.watcher->see(
          {.place = Place::input,
           .operation = node.operation,
           .name = parameter_of(node),
           .value = x,
           .lanes = x.row_origin().is_samples() ? lanes_of(node, lanes) : nullptr});
  trace::here.watcher->see({.place = Place::forward,
                            .operation = node.operation,
                            .name = parameter_of(node),
                            .value = output,
                            .lanes = lanes_of(node, lanes),
                            .node = &node});
}

void show_gradient(Node& node, const Lanes* lanes) {
  const bool by_lanes = node.rows == Node::Rows::none && node.lanes.defined();
  trace::here.watcher->see(
      {.place = Place::backward,
       .operation = node.operation,
       .name = parameter_of(node),
       .value = by_lanes ? kernels::tree_sum(node.lanes.clone()) : node.output_gradient(),
       .lanes = lanes_of(node, lanes),
       .node = &node});
}

void show_ready(const Node& node, const detail::ParameterState& parameter) {
  trace::here.watcher->see({.place = Place::gradient,
                            .operation = node.operation,
                            .name = parameter.name,
                            .value = parameter.slot});
}

}  // namespace lockstep
