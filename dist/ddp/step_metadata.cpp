#include "lockstep/dist/ddp/step_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

namespace lockstep::dist {
namespace {

using Pieces = std::array<std::uint16_t, sizeof(StepMetadata) / 2>;

}  // namespace

template <class T>
void write(const StepMetadata& metadata, std::span<T> to) {
  std::ranges::copy(std::bit_cast<Pieces>(metadata), to.begin());
}

template <class T>
StepMetadata read(std::span<const T> from) {
  Pieces pieces;
  std::ranges::transform(from.first(pieces.size()), pieces.begin(),
                         [](T value) { return static_cast<std::uint16_t>(value); });
  return std::bit_cast<StepMetadata>(pieces);
}

template void write(const StepMetadata&, std::span<float>);
template void write(const StepMetadata&, std::span<double>);
template StepMetadata read(std::span<const float>);
template StepMetadata read(std::span<const double>);

StepOutcome decide_step(std::span<const StepMetadata> metadata, NonFinite policy) {
  using enum Contribution::Divisor;
  StepOutcome a;
  a.all_joined = std::ranges::all_of(metadata, [](const auto& m) { return m.joined == 1; });
  bool carried = false, any_joined = false;
  const StepMetadata* first = nullptr;
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const StepMetadata& m = metadata[r];
    a.weight += m.weight;
    carried = carried || m.already_reduced == 1;
    any_joined = any_joined || m.joined == 1;
    if (m.kind != none && !first) {
      first = &m;
      a.source = static_cast<int>(r);
    }
    if (m.bad_parameter >= 0 && !a.nonfinite) {
      a.nonfinite = true;
      a.bad_rank = static_cast<int>(r);
    }
  }
  if (first) {
    a.problem = contradiction(metadata, *first, a.source);
    // A total that was given holds, unless a rank is gone whose share was counted in.
    if (first->kind != given || (any_joined && a.weight < first->divisor))
      a.scale = first->divisor / a.weight;
    if (a.problem.empty() && carried && a.scale != 1)
      a.problem = fmt::format(
          "gradients that are synchronized already cannot be added to: of {:g} ranks those with "
          "data weigh {:g}. Give backward a Weight with a total",
          first->divisor, a.weight);
  } else {
    a.problem = contradiction(metadata, metadata[0], 0);
  }
  if (!a.problem.empty() || (a.nonfinite && policy == NonFinite::stop))
    a.verdict = StepVerdict::stop;
  else if (a.nonfinite && policy == NonFinite::skip)
    a.verdict = StepVerdict::skip;
  return a;
}

}  // namespace lockstep::dist
