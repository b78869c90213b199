// Second reading: in words, why the steps of the ranks do not fit together, and who waited for
// whom.

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/dist/ddp/step_exchange.h"

namespace lockstep::dist {
namespace {

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

}  // namespace

std::string contradiction(std::span<const StepMetadata> metadata, const StepMetadata& first,
                          int source) {
  const StepMetadata* named = nullptr;  // the first with a digest of its data
  for (std::size_t r = 0; r < metadata.size(); ++r) {
    const StepMetadata& m = metadata[r];
    if (m.plan != metadata[0].plan)
      return fmt::format("ranks 0 and {} have different bucket plans", r);
    if (m.steps != metadata[0].steps)
      return fmt::format(
          "ranks 0 and {} did not take the same optimizer steps since the last backward: their "
          "options differ, or one has stepped more often",
          r);
    if (m.data != 0 && named && m.data != named->data)
      return fmt::format(
          "ranks {} and {} deal the data differently: their loaders' batch, shuffle, seed, epoch, "
          "padded, drop_last, samples or labels differ. (Data that was split beforehand takes a "
          "Loader without a Shard.)",
          named - metadata.data(), r);
    if (m.data != 0 && !named) named = &m;
    if (m.already_reduced != metadata[0].already_reduced)
      return fmt::format(
          "the gradients of rank {} hold what the last backward left, those of rank {} were "
          "zeroed: zero_grad() on all ranks or on none",
          m.already_reduced ? r : 0, m.already_reduced ? 0 : r);
    if (m.kind != Contribution::Divisor::none &&
        (m.kind != first.kind || m.divisor != first.divisor))
      return fmt::format(
          "the ranks' weights do not fit together: rank {} gave {}, rank {} gave {}. Is a rank one "
          "batch ahead? (A window of several backwards sums its weights: there, ranks with a "
          "single backward must give Weight{{n}}, without a total.)",
          source, describe(first), r, describe(m));
  }
  return "";
}

std::string describe(const StepStatistics& s) {
  std::string text = "rank   computes ms/step   waits ms/step   slowest in\n";
  const double per_step = 1e3 / static_cast<double>(std::max<std::int64_t>(s.steps, 1));
  for (std::size_t r = 0; r < s.compute_seconds.size(); ++r)
    text += fmt::format("{:>4}   {:>16.3f}   {:>13.3f}   {:>8.0f} %\n", r,
                        s.compute_seconds[r] * per_step, s.wait_seconds[r] * per_step,
                        static_cast<double>(s.slowest[r]) * per_step / 10);
  return text;
}

}  // namespace lockstep::dist
