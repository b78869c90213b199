#include "lockstep/dist/ddp/step_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

namespace lockstep::dist {

using Pieces = std::array<std::uint16_t, sizeof(StepMetadata) / 2>;

template <class T>
void to_elements(const StepMetadata& metadata, std::span<T> to) {
  std::ranges::copy(std::bit_cast<Pieces>(metadata), to.begin());
}

template <class T>
StepMetadata from_elements(std::span<const T> from) {
  Pieces pieces;
  std::ranges::transform(from.first(pieces.size()), pieces.begin(),
                         [](T value) { return static_cast<std::uint16_t>(value); });
  return std::bit_cast<StepMetadata>(pieces);
}

template void to_elements(const StepMetadata&, std::span<float>);
template void to_elements(const StepMetadata&, std::span<double>);
template StepMetadata from_elements(std::span<const float>);
template StepMetadata from_elements(std::span<const double>);

StepOutcome decide_step(std::span<const StepMetadata> metadata, NonFinite policy) {
  using enum Contribution::Divisor;
  StepOutcome outcome;
  outcome.all_joined = std::ranges::all_of(metadata, [](const auto& m) { return m.joined == 1; });
  bool adds_to_sum = false, any_joined = false;
  const StepMetadata* first = nullptr;
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const StepMetadata& m = metadata[r];
    outcome.weight += m.weight;
    adds_to_sum = adds_to_sum || m.already_reduced == 1;
    any_joined = any_joined || m.joined == 1;
    if (m.replica_fingerprint != metadata[0].replica_fingerprint) outcome.replicas_differ = true;
    if (m.kind != none && !first) {
      first = &m;
      outcome.source = static_cast<int>(r);
    }
    if (m.bad_parameter >= 0 && !outcome.nonfinite) {
      outcome.nonfinite = true;
      outcome.bad_rank = static_cast<int>(r);
    }
  }
  outcome.problem = contradiction(metadata, first ? *first : metadata[0], outcome.source);
  if (first) {
    // A given total is valid, unless a rank that it counted has no more data.
    if (first->kind != given || (any_joined && outcome.weight < first->divisor))
      outcome.scale = first->divisor / outcome.weight;
    if (outcome.problem.empty() && adds_to_sum && outcome.scale != 1)
      outcome.problem = fmt::format(
          "gradients that are synchronized already cannot be added to: of {:g} ranks those with "
          "data weigh {:g}. Give backward a Weight with a total",
          first->divisor, outcome.weight);
  }
  if (!outcome.problem.empty() || outcome.replicas_differ ||
      (outcome.nonfinite && (policy == NonFinite::stop || policy == NonFinite::report)))
    outcome.verdict = StepVerdict::stop;
  else if (outcome.nonfinite && policy == NonFinite::skip)
    outcome.verdict = StepVerdict::skip;
  return outcome;
}

}  // namespace lockstep::dist
