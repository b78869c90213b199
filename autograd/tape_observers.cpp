// Second reading: which parameters and observers a backward reaches, what it refuses of them, and
// with what weight it begins.

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/autograd/tape_pass.h"

namespace lockstep {

using detail::Node;

void Tape::Pass::note(const Parameter& parameter) {
  (parameter.managed() ? managed : parameter.kept_local() ? kept_local : stray) = parameter;
  if (parameter.optimized())
    optimized = parameter;
  else if (!parameter.managed() && !parameter.kept_local() && parameter.name().empty())
    nameless = parameter;
}

// batch.weight is for means over samples. (With lanes each lane has its own loss.)
void Tape::Pass::refuse_other_means(const std::optional<Weight>& weight) const {
  if (!weight || weight->origin.parts <= 1 || weight->lanes != 0) return;
  for (const Node* node = loss; node; node = node->previous)
    if (node->reached && node->counted != -1 && node->counted != weight->local)
      fail<StateError>(
          "[backward] the loss is divided by what its labels count for ({}; class weights, ignored "
          "rows), and its weight is {} samples: several ranks would train another function than "
          "one. Write backward(loss, batch.weight.counting(label_weight(labels, options)))",
          std::isnan(node->counted) ? "not read" : fmt::format("{}", node->counted), weight->local);
}

// A parameter that a rank steps alone would differ between ranks. One that no optimizer steps stays
// as it was drawn.
void Tape::Pass::refuse_strays(const std::optional<Weight>& weight) const {
  if (weight && weight->origin.parts > 1 && stray.defined() && !managed.defined())
    fail<StateError>(
        "[backward] the batch is this rank's part of the data, but {} is not under "
        "DistributedDataParallel: was DistributedDataParallel not made, or the model replaced "
        "after it, or unfrozen (set_requires_grad)? (For a model of this rank alone: "
        "Weight{{batch.weight.local}})",
        stray);
  const bool differs = managed.defined() && stray.defined();
  if (!differs && !(optimized.defined() && nameless.defined())) return;
  const char* user = "";
  for (const Node* node = loss; node; node = node->previous)
    for (const Node::Input& input : node->inputs)
      if (node->reached && input.parameter.get() == nameless.id()) user = node->operation;
  if (nameless.defined() && differs)
    fail<StateError>(
        "[backward] the loss reaches {}, used by '{}', and {}, which is under "
        "DistributedDataParallel: does a module leave the first out of its visit()? (If it may "
        "differ between ranks: keep_local())",
        nameless, user, managed);
  if (nameless.defined())
    fail<StateError>(
        "[backward] the loss reaches {}, used by '{}', and {}, which an optimizer steps. None "
        "steps the first: does a module leave it out of its visit()? (If that is meant: "
        "set_name())",
        nameless, user, optimized);
  fail<StateError>(
      "[backward] the loss reaches {}, which is under DistributedDataParallel, and {}, which "
      "is not: was it made, replaced or unfrozen (set_requires_grad) after "
      "DistributedDataParallel? "
      "Make that afterwards. (If it may differ between ranks: keep_local())",
      managed, stray);
}

void Tape::link_observers(Pass& pass, const Parameter& parameter) {
  pass.note(parameter);
  parameter.state_->gradient_of = id_;
  if (parameter.gradient_state() == GradientState::nothing) parameter.state_->lanes_wait = false;
  const auto order = [](GradientObserver* observer) {
    const GradientReducer* const reducer = observer->as_reducer();
    return reducer ? reducer->order() : std::numeric_limits<std::int64_t>::max();
  };
  for (GradientObserver* observer : parameter.state_->observers) {
    // Only when the step has ended: an error that leaves a backward would break the world.
    if (StepGraph::noting() && StepGraph::recording() && !observer->replayable())
      StepGraph::at_end([name = parameter.name()] {
        fail<NotRecordable>("[step graph] '{}' has an observer, which no replay would call", name);
      });
    Pass::Link** place = &pass.observers;
    while (*place && (*place)->observer != observer && order((*place)->observer) <= order(observer))
      place = &(*place)->next;
    if (!*place || (*place)->observer != observer)
      *place = new (arena_.allocate(sizeof(Pass::Link))) Pass::Link{observer, *place};
  }
}

//   weight 0                                     none: exact zeros
//   no reducer, total unknown                    1 / 1
//   a reducer, in a window or total unknown      weight / 1, divided at the end
//   else                                         weight / total; without a weight, 1 / ranks
Contribution Tape::contribution(const Pass& pass, std::optional<Weight> weight, bool sync) {
  using Divisor = Contribution::Divisor;
  int ranks = 0;
  bool in_window = false;
  for (Pass::Link* link = pass.observers; link; link = link->next)
    if (GradientReducer* const reducer = link->observer->as_reducer()) {
      ranks = std::max(ranks, reducer->ranks());
      in_window = reducer->in_window(sync) || in_window;
    }
  const bool unknown = weight && weight->total == Weight::summed;
  const Weight w = weight.value_or(Weight{1, std::max(1.0, static_cast<double>(ranks))});
  if (!w.valid())
    fail<StateError>("[backward] weight {} of {}: it is 0 or 1e-15..1e15, and at most its total",
                     w.local, unknown ? "a total to be summed" : fmt::format("{}", w.total));
  if (w.local == 0) return {0, 1, Divisor::none, sync};
  if (ranks == 0 && unknown) return {1, 1, Divisor::given, sync};
  if (ranks > 0 && (in_window || unknown)) {
    if (pass.kept_local.defined())
      fail<StateError>(
          "[backward] the gradient of {} (kept local) would not be divided by the total of the "
          "weights, which is not known before the window closes",
          pass.kept_local);
    return {w.local, 1, Divisor::summed, sync};
  }
  return {w.local, w.total, weight ? Divisor::given : Divisor::ranks, sync};
}

}  // namespace lockstep
