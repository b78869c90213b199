// Second reading: how a reducer gets its buckets, the first ones and those after the first step;
// and what borrows their memory.

#include <algorithm>

#include "lockstep/core/hash.h"
#include "lockstep/dist/ddp/reducer.h"

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

BucketLayout first_layout(const std::vector<Parameter>& parameters, const DdpOptions& options) {
  check_each_once("DistributedDataParallel", parameters);
  for (const Parameter& parameter : parameters)
    check<StateError>(!parameter.managed(),
                      "[DistributedDataParallel] parameter '{}' is under another one already: end "
                      "that one first, or give this one other parameters",
                      parameter.name());
  if (!options.bucket_layout.empty())
    return layout_from_text(options.bucket_layout, parameters.size());
  return capped_layout(sizes_of(parameters), reverse_order(parameters.size()), caps_of(options));
}

std::vector<Parameter> joined(std::vector<Parameter> a, const std::vector<Parameter>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

Reducer::Reducer(const std::vector<Parameter>& parameters, Communicator& communicator,
                 const DdpOptions& options, const ReducerExtras& extras)
    : communicator_(communicator),
      number_(agreed_number(communicator)),
      options_(options),
      buckets_(parameters, communicator, first_layout(parameters, options),
               number_ == 0 ? "" : fmt::format(", model {}", number_)),
      transfer_(options.hook ? hook_transfer(communicator, options.hook)
                             : all_reduce_transfer(communicator)),
      window_(this->parameters()),
      replicas_(joined(parameters, extras.frozen), communicator, options.check_replicas,
                options.nonfinite == NonFinite::report),
      nonfinite_(options.nonfinite, this->parameters(), replicas_, communicator),
      ready_order_(options.rebuild_buckets && options.bucket_layout.empty() ? parameters.size()
                                                                            : 0),
      trace_(this->parameters()),
      exchange_(communicator, options.nonfinite),
      guards_{&window_, &replicas_, &nonfinite_, &ready_order_, &trace_} {
  guards_.insert(guards_.end(), extras.guards.begin(), extras.guards.end());
  guards_.push_back(&exchange_);  // times: after all that takes time
  for (std::size_t i = 0; i < parameters.size(); ++i) index_[parameters[i].id()] = i;
  if (options.hook) hook_taken_ = options.hook->bind();
  observe_all();
}

void Reducer::observe_all() {
  exchange_.mine.layout_digest = fnv1a(to_text(buckets_.layout()));
  transfer_->prepare(buckets_);
  for (const Parameter& parameter : parameters()) observations_.push_back(parameter.observe(*this));
}

// All ranks are here, after the same synchronization: no window is open, and nothing travels. What
// the rank `source` has seen decides for all.
void Reducer::rebuild_buckets(int source) {
  std::vector<int> order = ready_order_.agree(communicator_, source);
  BucketLayout layout = capped_layout(buckets_.sizes(), std::move(order), caps_of(options_));
  if (bucket_places(buckets_.sizes(), layout).buckets == buckets_.places().buckets) return;
  observations_.clear();
  buckets_.lay_out(std::move(layout));
  observe_all();
}

void Reducer::average_parameters() {
  check_level_of_local_steps(options_.deterministic);
  settle();  // the metadata travels in the memory that is used here
  for (const Parameter& parameter : parameters())
    check<StateError>(parameter.gradient_state() != GradientState::local,
                      "[average_parameters] the gradient of '{}' is local: zero_grad() first",
                      parameter.name());
  zero_grad();
  average_values(buckets_, communicator_);
  replicas_.average_state();
  drifted_ = false;
}

}  // namespace lockstep::dist
