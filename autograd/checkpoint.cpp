#include "lockstep/autograd/checkpoint.h"

#include <algorithm>

#include "lockstep/autograd/rerun.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"

namespace lockstep {
namespace {

bool wants_gradient(const Tensor& tensor) {
  return tensor.gradient_ref().tape != GradientRef::nothing;
}

/// The inputs as operands on `tape`: those that want a gradient are watched.
std::vector<Tensor> on_tape(Tape& tape, std::span<const Tensor> inputs,
                            const std::vector<bool>& watched) {
  std::vector<Tensor> operands;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    operands.push_back(watched[i] ? tape.watch(inputs[i].detach()) : inputs[i]);
  return operands;
}

}  // namespace

bool recomputing() { return Rerun::innermost() != nullptr; }

Surroundings::Surroundings()
    : precision(Autocast::current()), generator(default_generator()), philox(default_philox()) {}

void Surroundings::restore() const {
  default_generator() = generator;
  default_philox() = philox;
}

Rerun::Rerun(const Surroundings& first) : ThreadScope("Rerun"), autocast_(first.precision) {
  first.restore();
}

// The random state of before goes to the scope that ends last.
Rerun::~Rerun() {
  Rerun* inner = nullptr;
  for (Rerun* other = innermost(); other && other != this; other = other->outer()) inner = other;
  if (inner)
    inner->now_ = now_;
  else
    now_.restore();
}

Tensor checkpoint(std::function<Tensor(std::span<const Tensor>)> block,
                  std::vector<Tensor> inputs) {
  Tape* const outer = Tape::current();
  if (!outer) return block(inputs);
  const Surroundings start;
  std::vector<bool> watched;
  for (const Tensor& input : inputs) watched.push_back(wants_gradient(input));

  Tensor result;
  std::vector<Parameter> used;
  {
    Tape notes(Tape::Purpose::dependencies);
    result = block(on_tape(notes, inputs, watched));
    used = notes.parameters_of(result);
    result = result.detach();
  }
  std::vector<Tensor> operands = inputs;
  operands.insert(operands.end(), used.begin(), used.end());
  std::vector<Operand> rows;  // the block's own operations have kept samples apart
  for (const Tensor& operand : operands)
    rows.push_back(operand.row_origin().is_samples() ? apart(operand) : shared(operand));
  std::vector<SavedTensor> read;  // by the second run, too
  for (const Tensor& operand : operands) read.emplace_back(operand);
  for (Tensor& input : inputs) input = input.detach();

  trace::forward_ends("checkpoint");
  return outer->record(
      "checkpoint", result, std::span<const Operand>(rows),
      [block = std::move(block), inputs, watched, used, start, read](Gradients& g) {
        for (const SavedTensor& tensor : read) *tensor;
        const Rerun scope(start);
        Tape tape;
        const std::vector<Tensor> again = on_tape(tape, inputs, watched);
        tape.continue_backward(block(again), g, used);
        const int count = static_cast<int>(inputs.size());
        for (int i = 0; i < count; ++i) {
          if (!g.needed(i)) continue;
          const Tensor& operand = again[static_cast<std::size_t>(i)];
          const Tensor gradient = tape.gradient(operand);  // undefined: the result is without it
          g.pass(i, gradient.defined()
                        ? gradient
                        : Tensor::zeros(operand.shape(), operand.dtype(), operand.device()));
        }
        for (int i = 0; i < static_cast<int>(used.size()); ++i) g.written(count + i);
      });
}

}  // namespace lockstep
