#pragma once
/// Two small values that the loader and the reducer share without knowing each other.

#include <cstdint>

namespace lockstep {

/// Which part of the data is ours: part `rank` of `size`.
struct Shard {
  int rank = 0;
  int size = 1;
};

/// What this rank's batch counts for in the step: `local` of `total` (samples, tokens, ...). The
/// gradient of a step is sum_r(local_r * g_r) / total, where g_r is the gradient of rank r's mean
/// loss. `Weight{n}` leaves the total to the reducer, which adds up the ranks' local weights.
/// Weight{0} is for a batch of no rows: rows that are there, but count for nothing, would still go
/// into what ranks share within forward (SyncBatchNorm refuses them).
struct Weight {
  static constexpr double summed = -1;  ///< a total that this rank does not know
  double local = 1;
  double total = summed;
  /// A digest of how the samples are dealt to the ranks (data::Loader): reducers compare it. 0: not
  /// said, as for data that was split beforehand.
  std::uint64_t data_digest = 0;
};

}  // namespace lockstep
