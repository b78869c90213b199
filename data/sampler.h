#pragma once
/// Which samples each rank takes in each step of an epoch: pure functions, no state.
///
/// An epoch is a permutation of the samples. The ranks' k-th batches together are its positions
/// [k * batch * W, (k + 1) * batch * W): the k-th batch of one process with a batch W times as
/// large. A step's positions are dealt to the ranks like cards: rank r of W takes its r-th, then
/// each W-th; so it takes as many in each step but the last. With lanes (core/lanes.h) a rank takes
/// consecutive positions instead.

#include <cstdint>

#include "lockstep/core/lanes.h"
#include "lockstep/core/shard.h"
#include "lockstep/core/tensor.h"

namespace lockstep::data {

/// The order of the samples in `epoch` (counted from 0): i64 (n,). With `shuffle` it is
/// Generator(seed + epoch).randperm(n), the order of PyTorch's DistributedSampler; without, 0 ..
/// n-1.
Tensor epoch_permutation(std::int64_t n, bool shuffle, std::uint64_t seed, int epoch);

/// How a Loader deals the samples of an epoch.
struct LoaderOptions {
  std::int64_t batch = 32;  ///< samples per rank and step, at least 1
  /// Not 0: samples per step on all ranks together, in the place of `batch`. Training then takes
  /// the same steps on any number of ranks, which may differ by one sample.
  std::int64_t total_batch = 0;
  bool shuffle = false;
  std::uint64_t seed = 0;  ///< of the shuffling; the same on all ranks
  /// false: exactly the n samples; ranks' last batches may differ in size, or be empty.
  /// true: the same number of samples for every rank, as in PyTorch's DistributedSampler.
  bool padded = false;
  /// With `padded`: leave out the last n mod W positions, instead of repeating the beginning.
  bool drop_last = false;
  /// Go on in the epoch where a batch of this `position` was the last, also on another number of
  /// ranks: no sample is left out, none taken twice.
  std::int64_t begin = 0;
  /// Not 0: batches are cut into so many lanes (core/lanes.h), a power of two, and training has the
  /// same bits on any number of ranks. `batch` then counts the samples of all ranks. Not with
  /// padded.
  int lanes = 0;
  Device device = {};  ///< where batches are wanted; they are put together on the cpu
};

/// A rank's part of an epoch. Functions of a step take 0 <= step < steps().
class EpochPlan {
 public:
  /// Throws UsageError unless 0 <= n, 1 <= batch, 0 <= total_batch, 0 <= rank < size, 0 <= begin <=
  /// n (with padded also beyond, where nothing is left), drop_last only with padded, and lanes that
  /// lanes_of() takes.
  EpochPlan(std::int64_t n, LoaderOptions options, Shard shard);

  /// The same number on every rank: ceil((n - begin) / (batch * W)) unless samples are dropped.
  std::int64_t steps() const;
  /// How many samples this rank takes in a step; 0 is possible in the last one, and in all if there
  /// are fewer samples in a step than ranks.
  std::int64_t rows(std::int64_t step) const;
  /// {rows of this rank, rows of all ranks}.
  Weight weight(std::int64_t step) const;
  /// The index into the permutation of a row, 0 <= row < rows(step).
  std::int64_t position(std::int64_t step, std::int64_t row) const;
  /// How a step's rows are cut into lanes; null without lanes.
  std::shared_ptr<const Lanes> lanes(std::int64_t step) const;
  /// The first position that is left after a step: where another plan of the epoch can begin.
  std::int64_t end(std::int64_t step) const;

 private:
  std::int64_t begin(std::int64_t step) const;
  std::int64_t held(std::int64_t count) const;
  std::int64_t lane_row(std::int64_t step, int lane) const;

  std::int64_t n_;
  std::int64_t begin_;
  std::int64_t dealt_;  // positions of all ranks; those from n_ on begin again at 0
  std::int64_t whole_;  // positions of all ranks in a step
  int lanes_;
  LaneRange own_;  // of them
  Shard shard_;
};

}  // namespace lockstep::data
