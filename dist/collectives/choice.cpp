#include "lockstep/dist/collectives/choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

namespace lockstep::dist {
namespace {

// Whether several ranks share each of several machines. Elsewhere hierarchical gains nothing.
bool has_levels(const Choice& choice) {
  if (!choice.nodes) return false;
  const auto nodes = static_cast<int>(choice.nodes->ranks.size());
  return nodes > 1 && nodes < choice.world;
}

std::span<const Algorithm> candidates(const Choice& choice, bool in_region) {
  using enum Algorithm;
  static constexpr Algorithm leveled[] = {one_shot, hierarchical};
  static constexpr Algorithm regions[] = {one_shot, two_shot_shared};
  static constexpr Algorithm copies[] = {one_shot, two_shot};
  static constexpr Algorithm streams[] = {one_shot, two_shot, halving, ring};
  switch (choice.requested) {
    case automatic:
      if (has_levels(choice)) return leveled;
      if (!choice.shared_memory) return streams;
      return in_region ? regions : copies;
    case two_shot: return in_region ? regions : copies;
    case hierarchical:
      if (has_levels(choice)) break;
      return std::span(in_region ? regions : copies).last(1);
    default: break;
  }
  return {&choice.requested, 1};
}

}  // namespace

std::optional<Algorithm> algorithm_named(std::string_view name) {
  using enum Algorithm;
  if (name == "direct") return two_shot;
  for (const Algorithm algorithm : {automatic, ring, one_shot, halving, hierarchical})
    if (name_of(algorithm) == name) return algorithm;
  return {};
}

bool adds_in_tree_order(std::string_view algorithm) {
  return algorithm.starts_with("two-shot") || algorithm == "one-shot" || algorithm == "halving" ||
         algorithm == "nccl-direct";
}

TransportCosts default_costs(std::string_view transport) {
  if (transport == "tcp" || transport == "shm+tcp")
    return {.hop = 15e-6, .byte = 0.4e-9, .crowd = 0.25, .add = 0.05e-9, .region = 0};
  return {.hop = 0.3e-6, .byte = 0.2e-9, .crowd = 0.1, .add = 0.05e-9, .region = 0.06e-9};
}

double predicted_seconds(const Choice& choice, Algorithm algorithm, std::size_t bytes) {
  const auto s = static_cast<double>(bytes);
  const double n = choice.world;
  const TransportCosts& c = choice.costs;
  const double crowded = c.byte * (1 + c.crowd * std::max(0.0, n - 2));
  const double share = (n - 1) / n;
  switch (algorithm) {
    case Algorithm::ring: return 2 * (n - 1) * c.hop + share * s * (2 * c.byte + c.add);
    case Algorithm::two_shot: return 2 * c.hop + share * s * (2 * crowded + c.add);
    case Algorithm::two_shot_shared: return 2 * c.hop + share * s * c.region;
    case Algorithm::one_shot: return c.hop + (n - 1) * s * (crowded + c.add);
    case Algorithm::halving: {
      const double p = std::bit_floor(static_cast<unsigned>(choice.world));
      const double rest = n > p ? 2 * c.hop + s * (2 * c.byte + c.add) : 0;
      return (1 + 2 * std::log2(p)) * c.hop + (p - 1) / p * s * (2 * c.byte + c.add) + rest;
    }
    case Algorithm::hierarchical: {
      if (!choice.nodes) break;
      const double nodes = static_cast<double>(choice.nodes->ranks.size());
      const double local = n / nodes;  // inside a machine bytes cost next to nothing
      return 2 * c.hop + 2 * default_costs("shm").hop +
             2 * s * (local - 1) / local * default_costs("shm").byte +
             (nodes - 1) / nodes * s / choice.nodes->local_shards * (2 * c.byte + c.add);
    }
    default: break;
  }
  return std::numeric_limits<double>::infinity();
}

Algorithm choose(const Choice& choice, Operation operation, std::size_t bytes, bool in_region) {
  using enum Algorithm;
  if (operation == Operation::all_gather && in_region && choice.requested != ring)
    return two_shot_shared;
  if (operation != Operation::all_reduce) {
    const bool flat = choice.requested == automatic && !choice.shared_memory;
    const bool ring_wins =
        predicted_seconds(choice, ring, bytes) < predicted_seconds(choice, two_shot, bytes);
    return choice.requested == ring || (flat && ring_wins) ? ring : two_shot;
  }
  const std::span<const Algorithm> all = candidates(choice, in_region);
  if (all.size() == 1) return all[0];
  return *std::ranges::min_element(
      all, {}, [&](Algorithm algorithm) { return predicted_seconds(choice, algorithm, bytes); });
}

std::string describe_choices(const Choice& choice, bool in_region) {
  const auto size = [](std::size_t bytes) {
    return bytes >= 1 << 20   ? fmt::format("{} MiB", bytes >> 20)
           : bytes >= 1 << 10 ? fmt::format("{} KiB", bytes >> 10)
                              : fmt::format("{} B", bytes);
  };
  std::string text;
  std::size_t bytes = 4;
  Algorithm now = choose(choice, Operation::all_reduce, bytes, in_region);
  for (; bytes <= std::size_t{1} << 30; bytes *= 2) {
    const Algorithm next = choose(choice, Operation::all_reduce, 2 * bytes, in_region);
    if (next == now) continue;
    text += fmt::format("up to {} {}; ", size(bytes), name_of(now));
    now = next;
  }
  return text + fmt::format("{}{}", text.empty() ? "always " : "beyond ", name_of(now));
}

}  // namespace lockstep::dist
