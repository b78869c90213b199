// Second reading: how a reducer gets its buckets, the first ones and those after the first step;
// and what borrows their memory.

#include <algorithm>

#include "lockstep/core/hash.h"
#include "lockstep/core/lanes.h"
#include "lockstep/dist/ddp/reducer.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {
namespace {

/// Rank 0's count of the reducers made so far on its thread. It tells two models with equal
/// parameters apart.
std::int64_t agreed_number(Communicator& communicator) {
  thread_local std::int64_t made = 0;
  const Tensor number = Tensor::scalar(static_cast<double>(made++), DType::i64);
  communicator.broadcast(number, 0, "reducer").wait();
  return *number.data<std::int64_t>();
}

BucketLayout first_layout(const std::vector<Parameter>& parameters, const ReducerOptions& options) {
  check_each_once("DistributedDataParallel", parameters);
  for (const Parameter& parameter : parameters)
    check<StateError>(!parameter.managed(),
                      "[DistributedDataParallel] parameter '{}' is under another one already: end "
                      "that one first, or give this one other parameters",
                      parameter.name());
  if (options.layout) return *options.layout;
  return capped_layout(sizes_of(parameters), reverse_order(parameters.size()), options.caps);
}

std::vector<Parameter> joined(std::vector<Parameter> a, const std::vector<Parameter>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

Reducer::Reducer(const std::vector<Parameter>& parameters, Communicator& communicator,
                 ReducerOptions options)
    : communicator_(communicator),
      number_(agreed_number(communicator)),
      options_(std::move(options)),
      buckets_(parameters, communicator, first_layout(parameters, options_),
               number_ == 0 ? "" : fmt::format(", model {}", number_)),
      window_(buckets_.parameters()),
      exchange_(communicator, options_.nonfinite),
      replicas_(joined(parameters, options_.frozen), communicator, options_.check_replicas,
                options_.nonfinite == NonFinite::report),
      ready_order_(options_.rebuild_buckets && !options_.layout ? parameters.size() : 0) {
  for (std::size_t i = 0; i < parameters.size(); ++i) index_[parameters[i].id()] = i;
  observe_all();
}

void Reducer::observe_all() {
  exchange_.mine.plan = fnv1a(to_text(buckets_.layout()));
  if (options_.hook) {
    observations_.push_back(options_.hook->bind());
    std::vector<BucketView> views;
    for (const GradientBuckets::Bucket& bucket : buckets_.all()) views.push_back(bucket.view());
    options_.hook->prepare(views, communicator_);
  }
  for (const Parameter& parameter : parameters()) observations_.push_back(parameter.observe(*this));
}

// All ranks are here, after the same synchronization: no window is open, and nothing travels. What
// the rank `source` has seen decides for all.
void Reducer::rebuild_buckets(int source) {
  std::vector<int> order = ready_order_.agree(communicator_, source);
  BucketLayout layout = capped_layout(buckets_.sizes(), std::move(order), options_.caps);
  if (bucket_plan(buckets_.sizes(), layout).buckets == buckets_.plan().buckets) return;
  observations_.clear();
  buckets_.lay_out(std::move(layout));
  observe_all();
}

// The trailer behind the last bucket travels as it is, after the hook's part: it also arrives
// later.
void Reducer::launch_hook(GradientBuckets::Bucket& bucket, bool last) {
  bucket.work = options_.hook->reduce(bucket.view(), communicator_);
  if (!last) return;
  const Tensor trailer = bucket.wire.slice(bucket.memory.numel(), bucket.wire.numel());
  bucket.work = communicator_.all_reduce(trailer, "metadata of " + bucket.name);
}

void Reducer::complete_hook(GradientBuckets::Bucket& bucket) {
  bucket.work.finish();  // the hook may read on the host
  options_.hook->complete(bucket.view(), communicator_);
}

void Reducer::average_parameters() {
  check<StateError>(!current_lanes(),
                    "[average_parameters] the batch has lanes, for the same bits on any number of "
                    "ranks: what ranks have trained apart depends on how many they are");
  check<StateError>(options_.deterministic < Deterministic::world,
                    "[average_parameters] bits of level '{}' (DdpOptions::deterministic): what "
                    "ranks have trained apart depends on how many they are",
                    name_of(options_.deterministic));
  settle();  // the metadata travels in the memory that is used here
  for (const Parameter& parameter : parameters())
    check<StateError>(parameter.gradient_state() != GradientState::local,
                      "[average_parameters] the gradient of '{}' is local: zero_grad() first",
                      parameter.name());
  zero_grad();
  for (const Parameter& parameter : parameters())
    parameter.gradient_slot().copy_from(parameter.value());
  for (GradientBuckets::Bucket& bucket : buckets_.all()) {
    copy_to_host(bucket);
    bucket.work = communicator_.all_reduce(bucket.wire, "average " + bucket.name);
  }
  for (GradientBuckets::Bucket& bucket : buckets_.all()) {
    bucket.work.wait();
    copy_from_host(bucket);
    kernels::scale(1.0 / communicator_.size(), bucket.memory, bucket.memory, false);
  }
  for (const Parameter& parameter : parameters())
    parameter.value().copy_from(parameter.gradient_slot());
  replicas_.average_state();
  drifted_ = false;
}

}  // namespace lockstep::dist
