#include "lockstep/autograd/lanes/row_sum.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep {

using detail::Node;
using detail::ParameterState;

namespace {

void store(const Tensor& sum, const Gradients::Destination& to) {
  kernels::scale(1, sum.view(to.tensor.shape()), to.tensor, to.accumulate);
}

Tensor lane_of(const Tensor& lanes, std::int64_t k) {
  return lanes.slice(k, k + 1).view(lanes.shape().with(0, 1, {}));
}

// Where the lanes of a parameter wait, if it gets several contributions.
Tensor waiting_lanes(const char* operation, ParameterState& parameter, std::int64_t count,
                     bool first) {
  const Tensor& value = parameter.value;
  const Shape shape = value.shape().with(0, 0, {count});
  Tensor& lanes = parameter.lanes;
  if (!first && lanes.shape() != shape)
    fail<StateError>(
        "[{}] the gradient of '{}' holds {} lanes of this rank, and this batch has {}: zero_grad() "
        "first",
        operation, parameter.name, lanes.size(0), count);
  if (!lanes.defined() || lanes.shape() != shape || lanes.device() != value.device())
    lanes = Tensor::empty(shape, value.dtype(), value.device());
  return lanes;
}

// Of what is made of no samples. They begin as zeros, and are added to.
Tensor lanes_of_node(Node& node, std::int64_t count) {
  if (!node.lanes.defined())
    node.lanes = Tensor::zeros(node.shape.with(0, 0, {count}), node.dtype, node.device);
  return node.lanes;
}

}  // namespace

bool Gradients::sums_rows(int i) const {
  if (!lanes_ || node_.rows == Node::Rows::none) return false;
  const Node::Input& input = this->input(i);
  return input.parameter || (input.node && input.node->rows == Node::Rows::none);
}

RowSum::RowSum(Gradients& g, int i, std::int64_t rows) : rows_(rows) {
  wanted_ = g.needed(i);
  if (!wanted_) return;
  if (g.sums_rows(i))
    take_lanes(g, i, *g.lanes_);
  else
    to_ = g.place(i);
}

void RowSum::take_lanes(Gradients& g, int i, const Lanes& lanes) {
  const Node::Input& input = g.input(i);
  if (input.parameter) {
    wait_in_parameter(g, *input.parameter);
    to_ = g.place(i);
    if (parts_.defined() && !accumulate_ && g.zero_weight_) parts_.fill_zero();
  } else {
    parts_ = lanes_of_node(*input.node, lanes.count());
    accumulate_ = true;
    g.written(i);
    to_ = {Tensor::empty(input.node->shape, input.node->dtype, input.node->device), false};
  }
  if (g.zero_weight_) return;  // to_ is a place where NaN does no harm
  lanes_ = lanes.offsets(rows_);
  if (parts_.defined()) to_ = {};
}

void RowSum::wait_in_parameter(const Gradients& g, ParameterState& parameter) {
  const bool first = parameter.state == GradientState::nothing;
  const bool waits = g.lanes_wait_ || parameter.uses_left > 1;
  if (first) parameter.lanes_wait = waits;
  check<StateError>(parameter.lanes_wait || !waits,
                    "[{}] the gradient of '{}' has been added up already, without its lanes: "
                    "zero_grad() first",
                    g.node_.operation, parameter.name);
  if (!parameter.lanes_wait) return;
  parts_ = waiting_lanes(g.node_.operation, parameter, g.lanes_->count(), first);
  accumulate_ = !first;
}

void RowSum::make_parts() {
  const std::int64_t count = std::ssize(lanes_) - 1;
  const Tensor& slot = to_.tensor;
  if (to_ && count > 1)
    parts_ = Tensor::empty(slot.shape().with(0, 0, {count}), slot.dtype(), slot.device());
}

Gradients::Destination RowSum::part(std::size_t k) {
  if (!parts_.defined()) return to_;
  return {lane_of(parts_, static_cast<std::int64_t>(k)), accumulate_};
}

void RowSum::add_parts() {
  if (to_ && parts_.defined()) store(kernels::tree_sum(parts_), to_);
}

void add_waiting_lanes(ParameterState& parameter) {
  // A copy: the lanes themselves may get more.
  store(kernels::tree_sum(parameter.lanes.clone()), {parameter.slot, false});
}

namespace {

void add_product(RowSum& sum, const Tensor& a, const Tensor& b, DType round_to = DType::f32) {
  if (!sum) return;
  const Gradients::Destination& whole = sum.whole();
  const bool rounds = round_to != DType::f32;
  if (whole && !sum.lanes().empty() && !rounds && a.dtype() == whole.tensor.dtype())
    return kernels::matmul_blocks(a, b, whole.tensor, sum.lanes(),
                                  {.transpose_a = true, .accumulate = whole.accumulate});
  sum.each([&](const RowRange& rows, const Gradients::Destination& to) {
    kernels::matmul(rows.of(a), rows.of(b), to.tensor,
                    {.transpose_a = true, .accumulate = to.accumulate, .round_to = round_to});
  });
}

void add_rows(RowSum& sum, const Tensor& rows) {
  if (!sum) return;
  sum.each([&](const RowRange& part, const Gradients::Destination& to) {
    kernels::sum_rows(detail::rounded_to(to.tensor.dtype(), part.of(rows)), to.tensor,
                      to.accumulate);
  });
}

}  // namespace

void add_product(Gradients& g, int i, const Tensor& a, const Tensor& b) {
  RowSum sum(g, i, a.size(0));
  add_product(sum, a, b);
}

void add_rows(Gradients& g, int i, const Tensor& rows) {
  RowSum sum(g, i, rows.size(0));
  add_rows(sum, rows);
}

void add_product_and_rows(Gradients& g, int i, int j, const Tensor& a, const Tensor& b,
                          DType round_to) {
  RowSum product(g, i, a.size(0)), rows(g, j, a.size(0));
  const bool alike = std::ranges::equal(product.lanes(), rows.lanes());
  // On the cpu, the products of all lanes in one call: the same bits, in less time.
  const bool in_blocks = a.device() == Device{} && !product.lanes().empty();
  if (product && rows && alike && !in_blocks)
    return product.each_with(rows, [&](const RowRange& part, const auto& dw, const auto& db) {
      kernels::linear_gradients(part.of(a), part.of(b), {dw.tensor, dw.accumulate},
                                {db.tensor, db.accumulate}, round_to);
    });
  const bool rounds = rows && round_to != DType::f32;  // the sum is that of rounded rows
  const Tensor dy = rounds ? detail::rounded_to(round_to, a) : a;
  add_product(product, dy, b, round_to);
  add_rows(rows, dy);
}

// ---- what is made of parameters alone, beside samples ----

// Its gradient is a sum over samples, so it has lanes, and so have the gradients of what it is made
// of: its backward runs for each lane.
void Gradients::run_by_lanes() {
  const Tensor lanes = node_.lanes;
  for (Node::Input& input : node_.inputs) {
    if (!input.parameter) continue;
    ParameterState& parameter = *input.parameter;
    const bool first = parameter.state == GradientState::nothing;
    check<StateError>(first || parameter.lanes_wait,
                      "[{}] the gradient of '{}' has been added up already, without its lanes: "
                      "zero_grad() first",
                      node_.operation, parameter.name);
    const Tensor waiting = waiting_lanes(node_.operation, parameter, lanes.size(0), first);
    if (first) waiting.fill_zero();
    parameter.lanes_wait = true;
    parameter.state = GradientState::local;
    if (first) Parameter(input.parameter).gradient_slot();  // where they will be added up
  }
  for (lane_ = 0; lane_ < lanes.size(0); ++lane_) {
    for (Node::Input& input : node_.inputs) input.written = false;
    node_.gradient = lane_of(lanes, lane_);
    node_.run(node_.closure, *this);
  }
  node_.lanes = {};
}

// A copy: the lanes themselves may go on to what the node was made of.
Tensor sum_of_lanes(Node& node) {
  if (node.rows != Node::Rows::none || !node.lanes.defined()) return node.output_gradient();
  return kernels::tree_sum(node.lanes.clone()).view(node.shape);
}

void add_lanes(Node& node) {
  node.gradient = sum_of_lanes(node);
  if (node.rows == Node::Rows::none) node.lanes = {};
}

Gradients::Destination Gradients::place_of_lane(Node::Input& input) {
  input.written = true;
  const Tensor lanes =
      input.parameter ? input.parameter->lanes : lanes_of_node(*input.node, lanes_->count());
  const Tensor lane = lane_of(lanes, lane_);
  if (!zero_weight_) return {lane, true};
  return {Tensor::empty(lane.shape(), lane.dtype(), lane.device()), false};
}

}  // namespace lockstep
