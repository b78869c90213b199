#pragma once
/// One backward over a tape, or the part of a backward that a nested tape runs.

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/core/trace/results.h"

namespace lockstep {

struct Tape::Pass {
  /// The observers of the parameters that the loss reaches, each once: reducers by their order,
  /// then the others. The list lies in the tape's memory.
  struct Link {
    GradientObserver* observer;
    Link* next;
  };
  detail::Node* loss;
  detail::Node* first = nullptr;  // the oldest that the loss reaches
  Link* observers = nullptr;
  // One of each kind that the loss reaches. A stray one is neither under a reducer nor kept local;
  // a nameless one is stray, and no optimizer has it.
  Parameter managed{}, stray{}, kept_local{}, optimized{}, nameless{};
  bool nested = false;       // within a pass of an outer tape, which tells the observers
  bool zero_weight = false;  // this rank's contributions are exact zeros
  bool lanes_wait = false;   // this backward is one of several of a window

  void note(const Parameter& parameter);
  void refuse_other_means(const std::optional<Weight>& weight) const;
  void refuse_strays(const std::optional<Weight>& weight) const;
};

// What the watcher of this thread sees (tape_results.cpp).
void show_output(const detail::Node& node, const Tensor& output, std::span<const Operand> operands,
                 Makes makes, const Lanes* lanes);
void show_gradient(detail::Node& node, const Lanes* lanes);
void show_ready(const detail::Node& node, const detail::ParameterState& parameter);

}  // namespace lockstep
