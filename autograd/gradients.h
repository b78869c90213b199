#pragma once
/// What a tape records of an operation, and what the operation's backward sees: the gradient of its
/// output, and the places where the gradients of its operands belong.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/autograd/lanes/operand.h"
#include "lockstep/autograd/parameter.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/core/lanes.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class RowSum;
class Tape;
class RowParts;

namespace detail {

/// One recorded operation, and also the one value that it produced.
struct Node {
  struct Input {
    Node* node = nullptr;                       // another recorded value, or
    std::shared_ptr<ParameterState> parameter;  // a parameter, or neither: a constant
    bool written = false;                       // by the backward that is running
    explicit operator bool() const { return node || parameter; }
  };
  /// What its rows are made of, on a tape with lanes: no samples; samples, row by row; or it is a
  /// loss, which has a number for each lane, and so has its gradient.
  enum class Rows : std::uint8_t { none, samples, losses };
  ~Node() { std::destroy(inputs.begin(), inputs.end()); }
  const Tensor& output_gradient();

  Node* previous = nullptr;  // recorded before this one
  const char* operation = "";
  Rows rows = Rows::none;
  Shape shape;  // of its gradient
  Device device;
  DType dtype = DType::f32;
  std::span<Input> inputs;  // in the tape's memory
  Tensor gradient;          // undefined until the first contribution, and until its use if ...
  double seed = 0;          // ... backward begins here: then it is full of this
  double counted = -1;      // a mean over what rows count for: the sum of that; else -1
  Tensor lanes;             // a loss: that of each lane; of no samples: its gradient by lanes
  const SavedTensor* relu = nullptr;  // the closure's, of this value, if relu made it: into_relu()
  bool relu_done = false;             // by the operation that wrote the gradient
  int uses = 0;          // contributions to the gradient, of the backward that is running
  bool reached = false;  // by the loss of the backward that is running
  bool watched = false;  // keeps its gradient
  bool spent = false;    // an earlier backward has freed what it saved
  void (*run)(void* closure, class Gradients&) = nullptr;
  void (*drop)(void* closure) = nullptr;  // destroys the closure and the tensors it saved
  void* closure = nullptr;
};

/// What an operation's backward sees. It writes straight into the places of its operands'
/// gradients: into bucket memory, for a parameter under DDP.
class Gradients {
 public:
  struct Destination {
    Tensor tensor;            // of the input's shape
    bool accumulate = false;  // add to what is there, instead of overwriting it
    Tensor positive{};        // into_relu() alone: write 0 where this is <= 0; undefined: nowhere
    explicit operator bool() const { return tensor.defined(); }
  };

  /// The gradient of the operation's value.
  const Tensor& output() const { return node_.output_gradient(); }
  /// The number that it is filled with, if backward() began here, and there is no tensor yet.
  std::optional<double> seed() const;
  bool needed(int i) const { return static_cast<bool>(input(i)); }  ///< input i wants a gradient
  /// The shape of the gradient that input i wants: its value's, except for a loss with lanes.
  const Shape& shape(int i) const;
  /// Where input i's contribution is to be written, once; empty if it wants none.
  Destination into(int i);
  /// The same, for an operation that can also begin the backward of a relu() that made operand i.
  /// It is asked to, if its contribution is the only one and nobody else looks at the gradient.
  Destination into_relu(int i);
  /// The gradient of what relu made `positive` of, this operation's value: output(), or 0 where
  /// `positive` is <= 0. Undefined: there was no relu, and it is output().
  Tensor before_relu(const Tensor& positive) const;
  /// Input i's contribution is `gradient` itself: its memory is shared where that is safe.
  void pass(int i, const Tensor& gradient);
  void written(int i) { input(i).written = true; }  ///< by other means
  /// This rank has weight 0, and contributes exact zeros. (SyncBatchNorm's backward needs it.)
  bool zero_weight() const { return zero_weight_; }

  /// Operand i is shared by rows that are cut into parts: its gradient is written by sum_rows() or
  /// add_product() (rows.h), not by into().
  bool sums_rows(int i) const;

 private:
  friend class lockstep::Tape;
  friend class lockstep::RowSum;
  friend class lockstep::RowParts;
  Gradients(Node& node, const Tape& tape, bool zero_weight, bool lanes_wait);
  void run();
  void run_by_lanes();
  Node::Input& input(int i) const;
  void refuse_sum(int i) const;
  Destination place(int i);
  Destination place_of_lane(Node::Input& input);
  void check_passed(int i, const Tensor& gradient) const;
  Node& node_;
  const Lanes* lanes_;      // the tape's
  std::int64_t lane_ = -1;  // the lane for which it runs, if it runs for each lane
  bool zero_weight_;
  bool lanes_wait_;  // for the other backwards of their window
};

}  // namespace detail

using detail::Gradients;

}  // namespace lockstep
