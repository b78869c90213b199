#include "lockstep/dist/ddp/guards/accumulation_window.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/hash.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {

bool AccumulationWindow::open() const {
  return std::ranges::any_of(parameters_, [](const Parameter& parameter) {
    return parameter.gradient_state() == GradientState::local;
  });
}

void AccumulationWindow::enter(const Contribution& contribution) {
  using enum Contribution::Divisor;
  if (!open()) close();  // zero_grad may have given up the last one
  for (std::size_t i = 0; i < entries_.size() && weight_ > 0; ++i) check_unbroken(i);
  weight_ += contribution.weight;
  check<StateError>(
      contribution.window < 0 || contribution.window == weight_,
      "[backward] the loss reaches parameters of several DistributedDataParallel, and "
      "their windows differ: with this backward the weights add up to {:g} in one and "
      "{:g} in the other. Let every backward of a window reach all of them, or "
      "synchronize each",
      contribution.window, weight_);
  note(contribution.origin);
  if (contribution_.kind == none) contribution_ = contribution;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (parameters_[i].gradient_state() == GradientState::nothing) entries_[i] = {};
    if (parameters_[i].uses_left() > 0 && contribution.kind != none) entries_[i].used = true;
  }
}

// Of several batches: a sum over all deals and steps, so that their order does not matter.
void AccumulationWindow::note(const BatchOrigin& origin) {
  if (origin.deal_digest == 0) return;
  const auto digest = [](const BatchOrigin& part) {
    return Fnv1a().add(part.deal_digest).add(static_cast<std::uint64_t>(part.step)).value() | 1;
  };
  const BatchOrigin before = std::exchange(origin_, origin);
  if (before.deal_digest == 0) return;
  const bool first_two = before.step >= -1;
  origin_.deal_digest = (first_two ? digest(before) : before.deal_digest) + digest(origin);
  origin_.step = first_two ? -2 : before.step - 1;
  if (before.part != origin.part || before.parts != origin.parts)
    origin_.part = 0, origin_.parts = BatchOrigin::several;
}

// Within a window all gradients have the same parts in them, or none.
void AccumulationWindow::check_unbroken(std::size_t i) const {
  const Parameter& parameter = parameters_[i];
  check<StateError>(
      !entries_[i].averaged || parameter.gradient_state() != GradientState::local,
      "[backward] an optimizer has stepped on the local gradient of '{}': zero_grad() before the "
      "next backward",
      parameter.name());
  check<StateError>(!entries_[i].used || parameter.gradient_state() != GradientState::nothing,
                    "[backward] the gradient of '{}' was zeroed within a window, those of other "
                    "parameters were not",
                    parameter.name());
}

void AccumulationWindow::write(StepMetadata& metadata) {
  metadata.weight = weight_;
  metadata.divisor = contribution_.divisor;
  metadata.kind = contribution_.kind;
  metadata.origin = origin_;
}

void AccumulationWindow::close() {
  weight_ = 0;
  origin_ = {};
  contribution_ = {0, 1, Contribution::Divisor::none, true};
  for (Entry& entry : entries_) entry.used = false;
}

bool AccumulationWindow::all_used() const {
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (!entries_[i].used && parameters_[i].requires_grad()) return false;
  return true;
}

void AccumulationWindow::make_local_mean(std::size_t i) {
  if (std::exchange(entries_[i].averaged, true) || weight_ == 0 || weight_ == 1) return;
  const Tensor& slot = parameters_[i].gradient_slot();
  kernels::scale(1 / weight_, slot, slot, false);
}

}  // namespace lockstep::dist
