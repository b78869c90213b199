#pragma once
/// Two small values that the loader and the reducer share without knowing each other.

#include <cstdint>
#include <type_traits>

namespace lockstep {

/// Which part of the data is ours: part `rank` of `size`.
struct Shard {
  int rank = 0;
  int size = 1;
};

/// Which batch this is, as data::Loader says it. A *deal* says which sample goes to which rank in
/// which step of an epoch. Reducers compare origins: every rank must take another part of the same
/// step of the same deal.
struct BatchOrigin {
  static constexpr std::uint16_t several = 0xffff;

  std::uint64_t deal_digest = 0;  ///< of the deal; 0: not said; of several batches: of all their
                                  ///< deals and steps, in any order
  std::int32_t step = -1;         ///< of the epoch; -1: not said; of k > 1 batches: -k
  std::uint16_t part = 0;         ///< Shard::rank
  std::uint16_t parts = 0;        ///< Shard::size; 0: not said; `several`: of several Shards
};

/// What a weight can be. An f32 holds numbers from 1e-38 to 3e38; half of that room, on either
/// side, is left to the gradients that are multiplied by the weight.
constexpr bool is_weight(double weight) {
  return weight == 0 || (weight >= 1e-15 && weight <= 1e15);
}

/// What this rank's batch counts for in the step: `local` of `total` (samples, tokens, ...). The
/// gradient of a step is sum_r(local_r * g_r) / total, where g_r is the gradient of rank r's mean
/// loss. `Weight{n}` leaves the total to the reducer, which adds up the ranks' local weights.
/// Weight{0} is for a batch of no rows: rows that are there, but count for nothing, would still go
/// into what ranks share within forward (SyncBatchNorm refuses them).
struct Weight {
  static constexpr double summed = -1;  ///< a total that this rank does not know
  double local = 1;
  double total = summed;
  BatchOrigin origin = {};
  int lanes = 0;  ///< of the batch (core/lanes.h); 0: none, or not said

  constexpr Weight() = default;
  /// Of numbers of any type: Weight{x.size(0), 128}.
  template <class L, class T = double>
  requires(std::is_arithmetic_v<L>&& std::is_arithmetic_v<T>) constexpr Weight(
      L this_rank, T all_ranks = summed, BatchOrigin from = {})
      : local(static_cast<double>(this_rank)),
        total(static_cast<double>(all_ranks)),
        origin(from) {}

  /// Of the same batch, which counts for something else than its samples: `this_rank`, of a total
  /// that the reducer adds up.
  template <class L>
  requires(std::is_arithmetic_v<L>) constexpr Weight counting(L this_rank) const {
    Weight result(this_rank, summed, origin);
    result.lanes = lanes;
    return result;
  }

  /// Whether both are weights, and the total, if known, is no less than `local`.
  constexpr bool valid() const {
    const double rounded = total * (1 + 1e-6);  // perhaps a sum, in another order or in f32
    return is_weight(local) && (total == summed || (is_weight(total) && rounded >= local));
  }
};

}  // namespace lockstep
