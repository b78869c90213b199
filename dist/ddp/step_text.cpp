// Second reading: in words, why the steps of the ranks do not fit together.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lockstep/dist/ddp/step_exchange.h"

namespace lockstep::dist {
namespace {

/// The numbers of the ranks in texts.
struct Numbers {
  std::span<const int> known_as;
  int of(std::size_t rank) const {
    return known_as.empty() ? static_cast<int>(rank) : known_as[rank];
  }
};

std::string describe(const StepMetadata& m) {
  switch (m.kind) {
    case Contribution::Divisor::given:
      return fmt::format("weight {:g} of a total of {:g}", m.weight, m.divisor);
    case Contribution::Divisor::ranks:
      return fmt::format("no weight, for the mean over {:g} ranks", m.divisor);
    case Contribution::Divisor::summed:
      return fmt::format("weight {:g} of a total to be summed", m.weight);
    case Contribution::Divisor::none: break;
  }
  return "nothing";
}

// Another rank that took the same part as rank r: of two, one does not have its own number's.
std::optional<std::size_t> taken_twice(std::span<const StepMetadata> metadata, std::size_t r) {
  const BatchOrigin& mine = metadata[r].origin;
  if (mine.parts == 0 || mine.part == r) return std::nullopt;
  for (std::size_t q = 0; q < metadata.size(); ++q) {
    const BatchOrigin& other = metadata[q].origin;
    if (q != r && other.parts == mine.parts && other.part == mine.part) return q;
  }
  return std::nullopt;
}

// Why the ranks' Shards are not those of one world. A rank that accumulates parts of several Shards
// may stand for several ranks.
std::string contradiction_of_parts(std::span<const StepMetadata> metadata, const Numbers& number) {
  for (const StepMetadata& m : metadata)
    if (m.origin.parts == BatchOrigin::several) return "";
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const BatchOrigin& mine = metadata[r].origin;
    if (mine.parts != 0 && mine.parts != metadata.size())
      return fmt::format(
          "rank {} took part {} of {} of the data, and {} ranks train together: their world is the "
          "Loader's Shard. (For data that was split beforehand: Weight{{batch.weight.local}}.)",
          number.of(r), mine.part, mine.parts, metadata.size());
    if (const auto other = taken_twice(metadata, r))
      return fmt::format(
          "ranks {} and {} both took part {} of {} of the data: every rank's Shard has its own "
          "rank",
          number.of(std::min(r, *other)), number.of(std::max(r, *other)), mine.part, mine.parts);
  }
  return "";
}

// Why the ranks' batches are not of one step, as far as their loaders say it.
std::string contradiction_of_data(std::span<const StepMetadata> metadata, const Numbers& number) {
  if (std::string problem = contradiction_of_parts(metadata, number); !problem.empty())
    return problem;
  if (windows_are_ragged(metadata)) return "";
  const StepMetadata* first = nullptr;  // of those whose loader says something
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const BatchOrigin& mine = metadata[r].origin;
    if (mine.deal_digest == 0) continue;
    if (!first) first = &metadata[r];
    const int source = number.of(static_cast<std::size_t>(first - metadata.data()));
    if (mine.deal_digest != first->origin.deal_digest && mine.step < -1)
      return fmt::format(
          "of the {} batches that they accumulated, ranks {} and {} took different ones: other "
          "loaders, or other batches of the epoch",
          -mine.step, source, number.of(r));
    if (mine.deal_digest != first->origin.deal_digest)
      return fmt::format(
          "ranks {} and {} deal the data differently: their loaders' batch, shuffle, seed, epoch, "
          "padded, drop_last, samples or labels differ. (For data that was split beforehand: "
          "Weight{{batch.weight.local}}.)",
          source, number.of(r));
    if (mine.step >= 0 && first->origin.step >= 0 && mine.step != first->origin.step)
      return fmt::format("rank {} took batch {} of the epoch, rank {} took batch {}", source,
                         first->origin.step, number.of(r), mine.step);
  }
  return "";
}

}  // namespace

std::string contradiction(std::span<const StepMetadata> metadata, const StepMetadata& first,
                          int source, std::span<const int> known_as) {
  const Numbers number{known_as};
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const StepMetadata& m = metadata[r];
    if (m.layout_digest != metadata[0].layout_digest)
      return fmt::format("ranks {} and {} have different bucket layouts", number.of(0),
                         number.of(r));
  }
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const StepMetadata& m = metadata[r];
    if (m.steps_digest != metadata[0].steps_digest)
      return fmt::format(
          "ranks {} and {} did not take the same optimizer steps since the last backward: their "
          "options differ, one has stepped more often, or set_requires_grad was not called alike",
          number.of(0), number.of(r));
  }
  if (std::string problem = contradiction_of_data(metadata, number); !problem.empty())
    return problem;
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const StepMetadata& m = metadata[r];
    if (m.already_reduced != metadata[0].already_reduced)
      return fmt::format(
          "the gradients of rank {} hold what the last backward left, those of rank {} were "
          "zeroed: zero_grad() on all ranks or on none",
          number.of(m.already_reduced ? r : 0), number.of(m.already_reduced ? 0 : r));
    if (m.kind != Contribution::Divisor::none &&
        (m.kind != first.kind || m.divisor != first.divisor))
      return fmt::format(
          "the ranks' weights do not fit together: rank {} gave {}, rank {} gave {}. Is a rank one "
          "batch ahead? (A window of several backwards sums its weights: there, ranks with a "
          "single backward must give Weight{{n}}, without a total.)",
          number.of(static_cast<std::size_t>(source)), describe(first), number.of(r), describe(m));
  }
  return "";
}

RanksByValue sides(std::span<const StepMetadata> metadata) {
  const auto fields = {
      +[](const StepMetadata& m) { return fmt::format("{}", m.layout_digest); },
      +[](const StepMetadata& m) { return fmt::format("{}", m.steps_digest); },
      +[](const StepMetadata& m) { return fmt::format("{}", m.origin.parts); },
      +[](const StepMetadata& m) { return fmt::format("{}", m.origin.deal_digest); },
      +[](const StepMetadata& m) { return fmt::format("{}", m.origin.step); },
      +[](const StepMetadata& m) { return fmt::format("{}", m.already_reduced); },
      +[](const StepMetadata& m) {
        return fmt::format("{} {}", static_cast<int>(m.kind), m.divisor);
      }};
  for (const auto field : fields) {
    std::vector<std::string> values;
    for (const StepMetadata& m : metadata) values.push_back(field(m));
    if (RanksByValue result = ranks_by_value(values); result.size() > 1) return result;
  }
  return {};
}

bool windows_are_ragged(std::span<const StepMetadata> metadata) {
  std::optional<std::int32_t> length;  // -1, or -k
  for (const StepMetadata& m : metadata) {
    if (m.origin.deal_digest == 0) continue;
    const std::int32_t mine = std::min(m.origin.step, -1);
    if (length.value_or(mine) != mine) return true;
    length = mine;
  }
  return false;
}

}  // namespace lockstep::dist
