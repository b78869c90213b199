#pragma once
/// Lanes: how a batch is cut, so that its result has the same bits on any number of ranks.
///
/// The batch of all ranks is cut into L consecutive lanes, L a power of two. Each sum over samples
/// (gradients of weights, statistics of a batch) is computed lane by lane, and the lanes' parts are
/// added in one balanced binary tree. A rank owns a node of that tree: it adds what lies below, and
/// the all-reduce adds the rest. So the bits depend on L, and not on the ranks:
///
///     lanes     0   1   2   3   4   5   6   7         2 ranks: the node over 0..3, that over 4..7
///                \ /     \ /     \ /     \ /          3 ranks: 0..1, 2..3, 4..7
///                 +       +       +       +           4 ranks: two lanes each
///                  \     /         \     /            8 ranks: one lane each
///                   \   /           \   /
///                     +               +
///                      \             /
///                        --- + -----
///
/// The tree over the ranks is that of kernels/tree_reduce.h. Where the ranks are no power of two,
/// some own more lanes than others: of 16 lanes, 5 ranks own 2, 2, 2, 2 and 8.
///
/// (The idea to fix the number of logical workers is EasyScale's: Li et al., "EasyScale: Accuracy-
/// consistent Elastic Training for Deep Learning", SC 2023.)
///
/// A data::Loader with LoaderOptions::lanes says how its batches are cut. While its loop runs, this
/// thread's tapes know it (LaneScope), and operations ask their tape.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/core/shard.h"
#include "lockstep/core/system/thread_scope.h"

namespace lockstep {

constexpr int max_lanes = 64;

/// Lanes [first, first + count) of all lanes.
struct LaneRange {
  int first = 0;
  int count = 0;
  bool operator==(const LaneRange&) const = default;
};

/// The lanes that a rank owns. Throws UsageError unless `lanes` is a power of two up to max_lanes,
/// and there are enough of them: 2^ceil(log2(size)).
LaneRange lanes_of(Shard shard, int lanes);

/// Where lane `lane` of a batch of `rows` rows begins, 0 <= lane <= lanes: lanes have ceil(rows /
/// lanes) rows, the last ones fewer or none.
std::int64_t lane_begin(std::int64_t rows, int lanes, int lane);

/// A rank's part of one batch.
class Lanes {
 public:
  /// Of a batch of `rows` rows on all ranks. Throws UsageError as lanes_of does.
  Lanes(std::int64_t rows, int lanes, Shard shard);

  int total() const { return total_; }  ///< of all ranks
  int first() const { return first_; }  ///< the number of this rank's lane 0 among them
  int count() const { return static_cast<int>(offsets_.size()) - 1; }  ///< of this rank
  std::int64_t rows() const { return offsets_.back(); }                ///< of this rank
  std::int64_t all_rows() const { return all_rows_; }
  std::int64_t first_row() const { return first_row_; }  ///< of this rank, in the whole batch
  /// Lane k of this rank has its rows offsets()[k] .. offsets()[k + 1] - 1. One more than count().
  std::span<const std::int64_t> offsets() const { return offsets_; }
  std::int64_t rows_of(int lane) const;  ///< 0 <= lane < count()

  /// Whether `weight` is what this rank's part counts for: its number of samples, of all samples.
  bool have(const Weight& weight) const;
  /// Whether `size` can be that of a first dimension that counts this rank's rows, or some equal
  /// number of parts of each.
  bool counts(std::int64_t size) const {
    return rows() == 0 ? size == 0 : size % rows() == 0 && size > 0;
  }
  /// offsets() of a tensor whose first dimension has `size`, for which counts(size).
  std::vector<std::int64_t> offsets(std::int64_t size) const;

 private:
  std::vector<std::int64_t> offsets_;
  std::int64_t all_rows_, first_row_;
  int total_, first_;
};

/// The lanes of the batch on which this thread works; null: it has none.
const std::shared_ptr<const Lanes>& current_lanes();

/// Sets current_lanes() until it ends: of several scopes, the last that was set counts. A copy sets
/// none.
class LaneScope {
 public:
  LaneScope() = default;
  explicit LaneScope(std::shared_ptr<const Lanes> lanes) { set(std::move(lanes)); }
  LaneScope(const LaneScope&) {}
  LaneScope& operator=(const LaneScope&) = delete;
  void set(std::shared_ptr<const Lanes> lanes);

 private:
  friend const std::shared_ptr<const Lanes>& current_lanes();
  struct Set : ThreadScope<Set> {
    explicit Set(std::shared_ptr<const Lanes> of)
        : ThreadScope("LaneScope"), lanes(std::move(of)) {}
    std::shared_ptr<const Lanes> lanes;
  };
  std::optional<Set> set_;
};

}  // namespace lockstep
