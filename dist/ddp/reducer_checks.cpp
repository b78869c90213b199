// Second reading: what a reducer refuses, how it ends after an error, and steps on this rank's own
// gradients.

#include <algorithm>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/hash.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/collectives/choice.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/ddp/agreed_error.h"
#include "lockstep/dist/ddp/reducer.h"

namespace lockstep::dist {
namespace {

std::string bad_value(const std::vector<Parameter>& parameters, int i, std::int64_t element) {
  return fmt::format(
      "element {} of {} has become infinite or NaN: a learning rate that is too large, or data "
      "that "
      "is not finite? (NonFinite::stop tells in whose gradient it begins)",
      element, parameters[static_cast<std::size_t>(i)]);
}

}  // namespace

void Reducer::check_world_lives(std::string_view operation) const {
  if (world_.ended())
    (void)world_.get(fmt::format("[{}] the DistributedDataParallel of '{}'", operation,
                                 parameters().empty() ? "" : parameters().front().name()));
}

void Reducer::check_can_add(const Contribution& contribution) const {
  check<StateError>(!synchronizing_ || !drifted_,
                    "[backward] an optimizer has stepped on this rank's own gradients "
                    "(optim::local): the replicas differ until average_parameters()");
  check_level(contribution);
  const bool adds_only_to_local = contribution.kind == Contribution::Divisor::summed ||
                                  !synchronizing_ || contribution.lanes > 0;
  for (const Parameter& parameter : parameters())
    check<StateError>(
        !adds_only_to_local || parameter.gradient_state() != GradientState::synchronized,
        "[backward] the gradient of '{}' is synchronized already; a window, or a weight whose "
        "total is to be summed, cannot be added to it: zero_grad() first (if it is in no "
        "optimizer, DistributedDataParallel::zero_grad()), or give a Weight with a total",
        parameter.name());
  if (recording_) check_recordable(contribution);
}

void Reducer::check_level(const Contribution& contribution) const {
  const Deterministic asked = options_.deterministic;
  const Deterministic level =
      contribution.lanes > 0 ? std::max(asked, Deterministic::world) : asked;
  if (level == Deterministic::run) return;
  const auto refuse = [&](const std::string& why) {
    fail<StateError>("[backward] bits of level '{}' ({}): {}", name_of(level),
                     contribution.lanes > 0 ? "the batch has lanes" : "DdpOptions::deterministic",
                     why);
  };
  if (options_.hook)
    refuse("a communication hook rounds what this rank has added up: none may be there");
  communicator_.add_in_tree_order();
  for (const GradientBuckets::Bucket& bucket : buckets_.all()) {
    const std::string_view how = communicator_.algorithm(bucket.wire.bytes(), bucket.wire.dtype());
    if (ranks() > 1 && !adds_in_tree_order(how))
      refuse(fmt::format("the ranks add up in a balanced tree, and {} does not: take --comm direct",
                         how));
  }
  if (level >= Deterministic::world && contribution.lanes == 0)
    refuse("the batch has no lanes, LoaderOptions::lanes");
  if (level < Deterministic::machine) return;
  for (const Parameter& parameter : parameters())
    if (const Tensor& value = parameter.value();
        value.device() != Device{} || value.dtype() != DType::f32)
      refuse(fmt::format("{} is {} on {}, and only f32 on the cpu gives it", parameter,
                         value.dtype(), value.device()));
  if (Autocast::current() != DType::f32) refuse("Autocast multiplies 16-bit numbers");
}

// A recorded step (core/gpu/graph.h) runs again without the host, so nothing may depend on what the
// host would read: no metadata travels. The total is known, every parameter is used, and the sums
// are the gradients. The step before the recording has checked that the ranks agree, and their
// calls are compared while the recording is made.
void Reducer::check_recordable(const Contribution& contribution) const {
  const auto refuse = [](bool bad, std::string_view why) {
    check<StateError>(!bad, "[backward] in a step that is being recorded {}", why);
  };
  refuse(!contribution.total_known(),
         "the total weight must be known when backward begins: give Weight a total, or no Weight");
  refuse(looks_in_gradients(options_.nonfinite),
         "nobody can look for infinite gradients: NonFinite::report");
  refuse(options_.hook != nullptr, "there can be no communication hook");
  refuse(!synchronizing_, "gradients cannot only be accumulated");
  for (const GradientBuckets::Bucket& bucket : buckets_.all())
    refuse(bucket.memory.device() != bucket.wire.device(),
           "gradients cannot travel through the host: take nccl, or transport ipc");
  for (const Parameter& parameter : parameters()) {
    check<StateError>(parameter.pending() > 0,
                      "[backward] in a step that is being recorded every parameter must be used, "
                      "'{}' is not",
                      parameter.name());
    check<StateError>(parameter.gradient_state() == GradientState::nothing,
                      "[backward] in a step that is being recorded gradients begin at nothing, and "
                      "that of '{}' does not: zero_grad() first",
                      parameter.name());
  }
}

// Each rank's gradients may be finite and their sum not: it has the same bits everywhere, so all
// ranks see it and come to the same verdict.
bool Reducer::sums_are_finite() {
  for (const GradientBuckets::Bucket& bucket : buckets_.all()) bad_.look_in(bucket);
  if (!bad_.found()) return true;
  if (options_.nonfinite == NonFinite::skip) return false;
  exchange_.report().verdict = StepVerdict::stop;
  stop_all_ranks(
      communicator_,
      fmt::format("[backward] element {} of the gradient of '{}' is finite on each rank, but not "
                  "their sum",
                  bad_.element, parameters()[static_cast<std::size_t>(bad_.parameter)].name()));
}

// Of a step that all ranks have taken.
std::string Reducer::bad_value_now() {
  NonFiniteElement bad;
  if (replicas_.saw_nonfinite()) bad.look_in(parameters());
  return bad.found() ? bad_value(parameters(), bad.parameter, bad.element) : "";
}

void Reducer::stop(const StepOutcome& outcome) {
  trace::verdict("stop");
  replicas_.error_told();
  const auto& all = exchange_.all();
  std::string problem = outcome.problem;
  Blame blame;
  std::vector<int> known_as;  // decide_step is a pure function, and knows no other numbers
  for (int rank = 0; rank < ranks(); ++rank)
    known_as.push_back(communicator_.membership().known_as(rank));
  if (std::string text = contradiction(all, all[index(outcome.source)], outcome.source, known_as);
      !text.empty())
    problem = std::move(text);
  if (const auto said = sides(all); !problem.empty() && !said.empty())
    blame = in_minority(communicator_, said);
  const auto plan_as_first = [&](const StepMetadata& m) { return m.plan == all[0].plan; };
  const auto steps_as_first = [&](const StepMetadata& m) { return m.steps == all[0].steps; };
  if (std::ranges::all_of(all, plan_as_first) && !std::ranges::all_of(all, steps_as_first)) {
    try {  // all ranks are here, as they have read the same, unless one has ended meanwhile
      const std::string options = replicas_.find_options_difference();
      problem += options.empty() ? ". (The options are equal now.)" : ": " + options;
      if (!options.empty()) blame = replicas_.blame();
    } catch (const CommError&) {  // then the problem as it is must do
    }
  } else if (problem.empty() && outcome.replicas_differ) {
    problem = difference_now();
    blame = replicas_.blame();
  } else if (problem.empty()) {
    const StepMetadata& bad = exchange_.all()[index(outcome.bad_rank)];
    if (options_.nonfinite == NonFinite::report)
      stop_all_ranks(communicator_,
                     "[backward] " + bad_value(parameters(), bad.bad_parameter, bad.bad_element));
    problem = fmt::format("element {} of the gradient of '{}' is infinite or NaN on rank {}",
                          bad.bad_element,
                          parameters()[static_cast<std::size_t>(bad.bad_parameter)].name(),
                          communicator_.membership().known_as(outcome.bad_rank));
    blame = communicator_.membership().blame(outcome.bad_rank, Fault::nonfinite);
  }
  stop_all_ranks(communicator_, "[backward] " + problem, blame);
}

// The other ranks go on to launch this backward's buckets. Nothing that this rank sends later may
// be taken for them.
void Reducer::backward_failed() noexcept {
  replicas_.error_told();
  if (ranks() > 1 && !world_.ended())
    if (const auto message = news_for_others())
      communicator_.abort(fmt::format("[backward] rank {} left it by an exception: {}",
                                      communicator_.membership().known_as(communicator_.rank()),
                                      *message));
  window_.close();
  zero_grad();
}

void Reducer::synchronize(double weight) {
  check<UsageError>(is_weight(weight), "[synchronize] weight {}: it is 0 or from 1e-15 to 1e15",
                    weight);
  check<StateError>(*paused_ == 0, "[synchronize] within a no_sync scope: end that first");
  try {
    backward_begins({weight, 1, Contribution::Divisor::none, true});
    backward_ends();
  } catch (...) {
    backward_failed();
    throw;
  }
}

void Reducer::step_begins(const Parameter& parameter, bool local) {
  check_world_lives("step");
  if (parameter.gradient_state() != GradientState::local) return;
  check<StateError>(local,
                    "[step] the gradient of '{}' is not synchronized: run a backward that "
                    "synchronizes before the step",
                    parameter.name());
  window_.make_local_mean(index_.at(parameter.id()));
}

kernels::Fingerprint Reducer::fingerprint(const Parameter& parameter, bool part) {
  return replicas_.step_on(index_.at(parameter.id()), part);
}

// Two optimizers may step in another order on another rank: a sum of their digests.
void Reducer::stepped(const std::weak_ptr<Stepper>& stepper, std::uint64_t options, bool local) {
  replicas_.note(stepper);
  if (const auto& survival = communicator_.membership().survival) survival->marked = false;
  drifted_ = drifted_ || (local && ranks() > 1);
  if (!local) exchange_.mine.steps += Fnv1a().add(options).value();
}

void Reducer::requires_grad_changes(const Parameter& parameter, bool yes) {
  Fnv1a digest;  // freezing and thawing again is nothing
  digest.add(index_.at(parameter.id()));
  exchange_.mine.steps += yes ? digest.value() : -digest.value();
}

// All ranks have read the same metadata, in which the sums of their steps differ.
std::string Reducer::difference_now() {
  const std::string found = replicas_.find_difference();
  if (!found.empty()) return "the replicas differ: " + found;
  return "the replicas have differed since the last step, and are equal now: was a parameter, what "
         "an optimizer keeps or the gradient of a sharded one changed on one rank?";
}

void Reducer::check_replicas() {
  settle();
  const std::string found = replicas_.find_difference();
  if (!found.empty())
    stop_all_ranks(communicator_, "[check_replicas] the replicas differ: " + found,
                   replicas_.blame());
  NonFiniteElement bad;
  if (options_.nonfinite == NonFinite::report) bad.look_in(parameters());
  if (bad.found())
    stop_all_ranks(communicator_,
                   "[check_replicas] " + bad_value(parameters(), bad.parameter, bad.element));
}

}  // namespace lockstep::dist
