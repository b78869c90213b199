#include "lockstep/dist/ddp/step_error.h"

#include <algorithm>

#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/ddp/agreed_error.h"
#include "lockstep/dist/ddp/step_exchange.h"

namespace lockstep::dist {
namespace {

// What decide_step has found, in the numbers by which people know the ranks.
Problem contradiction_among(const StepOutcome& outcome, std::span<const StepMetadata> all,
                            const Communicator& communicator) {
  Problem problem{outcome.problem, {}};
  std::vector<int> known_as;
  for (int rank = 0; rank < communicator.size(); ++rank)
    known_as.push_back(communicator.membership().known_as(rank));
  if (std::string text = contradiction(all, all[index(outcome.source)], outcome.source, known_as);
      !text.empty()) {
    problem.text = std::move(text);
    if (const auto said = sides(all); !said.empty())
      problem.blame = in_minority(communicator, said);
  }
  return problem;
}

// Optimizers' steps differ, and nothing before them: the options may say why.
void add_options(Problem& problem, std::span<const StepMetadata> all, ReplicaCheck& replicas) {
  const auto layout_as_first = [&](const StepMetadata& m) {
    return m.layout_digest == all[0].layout_digest;
  };
  const auto steps_as_first = [&](const StepMetadata& m) {
    return m.steps_digest == all[0].steps_digest;
  };
  if (!std::ranges::all_of(all, layout_as_first) || std::ranges::all_of(all, steps_as_first))
    return;
  try {  // all ranks are here, as they have read the same, unless one has ended meanwhile
    const std::string options = replicas.find_options_difference();
    problem.text += options.empty() ? ". (The options are equal now.)" : ": " + options;
    if (!options.empty()) problem.blame = replicas.blame();
  } catch (const CommError&) {  // then the problem as it is must do
  }
}

}  // namespace

void stop_step(const StepOutcome& outcome, std::span<const StepMetadata> all,
               ReplicaCheck& replicas, const NonFiniteCheck& nonfinite,
               Communicator& communicator) {
  Problem problem = contradiction_among(outcome, all, communicator);
  add_options(problem, all, replicas);
  if (problem.text.empty() && outcome.replicas_differ) {
    problem = replicas.explain_difference();
  } else if (problem.text.empty()) {
    problem = nonfinite.describe(all[index(outcome.bad_rank)], outcome.bad_rank);
  }
  stop_all_ranks(communicator, "[backward] " + problem.text, problem.blame);
}

}  // namespace lockstep::dist
