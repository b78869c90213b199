#pragma once
/// Reduces gradients in buckets while backward runs.
///
/// The life of a gradient: the tape's loop writes it into its place in a bucket; the last
/// contribution makes it ready; the last ready gradient of a bucket makes the bucket ready; buckets
/// are launched in index order, the same on every rank; the collective moves on at every later
/// ready point; at the end of backward the reducer waits for all of them and marks the gradients
/// synchronized.
///
///     backward kernels   | 4.w 4.b | 2.w 2.b | 0.w 0.b |
///     bucket 0 (4., 2.)                      |--- all-reduce ---|
///     bucket 1 (0.)                                    |--- all-reduce ---|
///
/// A parameter that the loss does not reach is ready before the first kernel and travels as zero;
/// with it travels, in the last bucket, how many ranks used each parameter. One that no rank used
/// has no gradient afterwards, and the optimizer skips it. No flag, no graph search.
///
/// Every rank's loss must reach at least one of the parameters: a rank whose loss reaches none
/// takes no part, and the others wait for it until they time out.
///
/// Several backwards before one step add up: what is already synchronized is carried by rank 0
/// alone, so that it is summed once.
///
/// A backward that is left by an exception breaks the communicator: the other ranks count on the
/// buckets that will not come.
///
/// Buckets are the gradients' memory (BucketPlan): there is no second copy and no copying. It comes
/// from the communicator, so that the transport reaches it. Gradients on a GPU have their buckets
/// there; to a communicator of the host a ready bucket is copied, and back at the end of backward.

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/bucket_plan.h"
#include "lockstep/dist/communicator.h"

namespace lockstep::dist {

class Reducer : public GradientObserver {
 public:
  /// Collective. Every rank passes the same parameters in the same order. Takes over their
  /// gradients' memory and gives it back in the destructor. `communicator` must outlive the
  /// reducer.
  Reducer(std::vector<Parameter> parameters, Communicator& communicator, std::size_t bucket_cap);
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void backward_begins() override;
  void gradient_ready(const Parameter& parameter) override;
  void backward_ends() override;
  void backward_failed() noexcept override;
  int summed_ranks() const override { return communicator_.size(); }

  const BucketPlan& plan() const { return plan_; }
  std::int64_t parameters() const;     ///< elements of all parameters
  std::size_t bytes() const;           ///< of all buckets
  std::size_t largest_bucket() const;  ///< bytes

 private:
  struct Bucket {
    std::string name;         // "bucket 0"
    Tensor memory;            // (numel,), the gradients'
    Tensor travelling;        // the communicator's: `memory` itself, or its copy on the host
    std::int64_t gradients;   // of numel, the first are gradients; in the last bucket counts follow
    std::size_t pending = 0;  // gradients still to become ready in this backward
    Work work;
  };
  struct Entry {
    Parameter parameter;
    std::size_t bucket = 0;
    Observation observation;
  };

  bool begin(const Parameter& parameter);
  void ready_in(Bucket& bucket);
  void launch_ready();
  static void copy_gradients(const Bucket& bucket, const Tensor& from, const Tensor& to);

  Communicator& communicator_;
  BucketPlan plan_;
  std::vector<Entry> entries_;  // in registration order
  std::vector<Bucket> buckets_;
  std::unordered_map<const void*, std::size_t> index_;  // Parameter::id() -> entry
  Tensor used_;                                         // (parameters,), the end of the last bucket
  std::size_t launched_ = 0;                            // buckets [0, launched_) are on their way
};

}  // namespace lockstep::dist
