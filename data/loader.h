#pragma once
/// One rank's batches of one epoch, of any data set, for a range-for:
///   for (const data::Batch& batch : data::Loader(train, {.batch = 32}, world, epoch))
///     use(batch.x, batch["mask"]);

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "lockstep/core/shard.h"
#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {

/// A number that is another one in each batch. To read it in a step that is recorded
/// (core/gpu/graph.h) is a StateError: the replays would have the recorded one.
class BatchNumber {
 public:
  BatchNumber(std::int64_t value = 0) : value_(value) {}  // NOLINT: used like a number
  operator std::int64_t() const {                         // NOLINT
    StepGraph::refuse_in_recording("batch.step or position");
    return value_;
  }

 private:
  std::int64_t value_;
};

/// What a rank takes in one step.
struct Batch {
  Tensor x;  ///< the field "x", undefined if there is none: (rows, ...)
  Tensor y;  ///< the field "y", likewise
  /// {this rank's samples, all ranks' samples} of the step, and where they come from: backward()
  /// refuses ranks whose loaders differ, or whose Shards are not those of its ranks. For data that
  /// was split beforehand, give it Weight{weight.local}.
  Weight weight;
  Fields fields;  ///< all fields, in the data set's order
  /// How many samples of the epoch all ranks have taken when the step has been done:
  /// LoaderOptions::begin of a run that goes on after it.
  BatchNumber position;
  BatchNumber step;                    ///< of its loader
  std::shared_ptr<const Lanes> lanes;  ///< how its rows are cut; null without LoaderOptions::lanes

  /// A field by its name. Throws DataError, which lists the names that exist.
  const Tensor& operator[](std::string_view name) const { return fields[name]; }
};

/// Every rank gets the same number of batches, so that ranks take the same steps: a rank that has
/// no samples left gets one of 0 rows. Batches own their tensors and may be kept. Of tensors in
/// memory, a step allocates only the batch's. Keeps the data set alive; any number of loaders, in
/// any threads, may read it. Copies share it; a loader that was moved from is a copy.
class Loader {
 public:
  /// Reads some samples, for the data set's digest and to learn what its fields are. Throws
  /// UsageError for the options that EpochPlan refuses and for a negative epoch.
  Loader(AnyDataset dataset, const LoaderOptions& options, Shard shard = {}, int epoch = 0);
  Loader(const Loader&) = default;
  Loader& operator=(const Loader&) = default;

  /// The batches of an epoch, the same number on every rank.
  std::int64_t steps() const { return plan_.steps(); }
  /// Gathers the batch of a step, 0 <= step < steps(). Throws DataError if its fields are not those
  /// of sample 0, in names, dtypes and shapes.
  Batch batch(std::int64_t step) const;
  /// One lane of the batch of all ranks, 0 <= lane < LoaderOptions::lanes, of any rank: the batch
  /// of a rank that has no other lane. Its weight does not say where it comes from.
  Batch lane(std::int64_t step, int lane) const;

  class Iterator;
  /// Over the batches of all steps, each gathered when it is reached.
  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }

 private:
  Batch gather(const EpochPlan& plan, std::int64_t step) const;

  AnyDataset dataset_;
  int epoch_;
  LoaderOptions options_;
  EpochPlan plan_;
  Tensor order_;  // i64 (n,): the epoch's permutation
  BatchOrigin origin_;
  Fields first_;  // of sample 0: what every batch must be like
};

/// An input iterator; the reference it gives holds until it is moved on. Until then the thread's
/// tapes know the batch's lanes; who calls batch() sets a LaneScope. The loader may end, or be
/// moved, before it.
class Loader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(const Loader& loader) : loader_(loader) { load(); }
  const Batch& operator*() const { return batch_; }
  const Batch* operator->() const { return &batch_; }
  Iterator& operator++() {
    ++step_;
    load();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return step_ == loader_.steps(); }

 private:
  void load() {
    batch_ = *this == std::default_sentinel ? Batch{} : loader_.batch(step_);
    if (loader_.options_.lanes != 0) scope_.set(batch_.lanes);
  }

  Loader loader_;
  std::int64_t step_ = 0;
  Batch batch_;
  LaneScope scope_;
};

inline Loader::Iterator Loader::begin() const { return Iterator(*this); }

}  // namespace lockstep::data
