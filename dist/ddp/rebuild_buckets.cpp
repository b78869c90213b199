// The making of a reducer's buckets: the first layout, and the second one after the first step.

#include <algorithm>

#include "lockstep/core/hash.h"
#include "lockstep/dist/collectives/measure.h"
#include "lockstep/dist/ddp/reducer.h"

namespace lockstep::dist {
namespace {

/// Rank 0's count of the reducers made so far on its thread: two models with equal parameters can
/// be told apart.
std::int64_t agreed_number(Communicator& communicator) {
  thread_local std::int64_t made = 0;
  const Tensor number = Tensor::scalar(static_cast<double>(made++), DType::i64);
  communicator.broadcast(number, 0, "reducer").wait();
  return *number.data<std::int64_t>();
}

void check_parameters(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    check<StateError>(!parameter.managed(), "[reducer] '{}' already has one", parameter.name());
    check<StateError>(std::ranges::count(parameters, parameter) == 1,
                      "[reducer] '{}' is given twice", parameter.name());
  }
}

}  // namespace

Reducer::Reducer(const std::vector<Parameter>& parameters, Communicator& communicator,
                 ReducerOptions options)
    : communicator_(communicator),
      number_(agreed_number(communicator)),
      options_(std::move(options)),
      entries_(parameters.size()),
      planned_(options_.rebuild_buckets == RebuildBuckets::never || options_.layout ||
               parameters.size() < 2),
      ready_at_(parameters.size()),
      messages_(index(communicator.size())) {
  check_parameters(parameters);
  const std::vector<GradientSize> sizes = sizes_of(parameters);
  BucketLayout layout = options_.layout
                            ? *options_.layout
                            : capped_layout(sizes, reverse_order(parameters.size()), options_.caps);
  check_layout(layout, parameters.size());
  buckets_ =
      std::make_unique<GradientBuckets>(parameters, communicator, std::move(layout),
                                        number_ == 0 ? "" : fmt::format(", model {}", number_));
  for (std::size_t i = 0; i < parameters.size(); ++i) index_[parameters[i].id()] = i;
  ready_.reserve(parameters.size());
  for (auto* seconds : {&report_.compute_seconds, &report_.wait_seconds,
                        &statistics_.compute_seconds, &statistics_.wait_seconds})
    seconds->resize(messages_.size());
  statistics_.slowest.resize(messages_.size());
  observe_all();
  step_start_ = times();
}

void Reducer::observe_all() {
  plan_digest_ = fnv1a(to_text(buckets_->layout()));
  if (options_.hook) prepare_hook();
  for (std::size_t i = 0; i < entries_.size(); ++i)
    entries_[i].observation = buckets_->parameters()[i].observe(*this);
}

// All ranks are here, after the same synchronization: no window is open, and nothing travels. What
// the rank `source` has seen decides for all.
void Reducer::rebuild_buckets(int source) {
  planned_ = true;
  const std::size_t n = entries_.size();
  const std::vector<int> order = complete_order(ready_, n);
  const LinkModel link =
      options_.rebuild_buckets == RebuildBuckets::measured ? measure_link() : LinkModel{};
  const Tensor seen = Tensor::empty({static_cast<std::int64_t>(2 * n + 2)}, DType::f64);
  double* values = seen.data<double>();
  std::ranges::copy(order, values);
  std::ranges::copy(ready_at_, values + n);
  values[2 * n] = link.latency;
  values[2 * n + 1] = link.bandwidth;
  communicator_.broadcast(seen, source, "ready order").wait();

  std::vector<int> agreed(n);
  std::ranges::transform(std::span(values, n), agreed.begin(),
                         [](double value) { return static_cast<int>(value); });
  const std::span<const double> ready_at(values + n, n);
  BucketLayout layout = options_.rebuild_buckets == RebuildBuckets::measured
                            ? measured_layout(buckets_->sizes(), std::move(agreed), ready_at,
                                              {values[2 * n], values[2 * n + 1]})
                            : capped_layout(buckets_->sizes(), std::move(agreed), options_.caps);
  if (bucket_plan(buckets_->sizes(), layout).buckets == plan().buckets) return;
  for (Entry& entry : entries_) entry.observation = {};
  buckets_->lay_out(std::move(layout));
  observe_all();
}

// Two all-reduces of unequal size tell what a bucket costs whatever its size, and what per byte.
LinkModel Reducer::measure_link() {
  const Tensor small = Tensor::zeros({256}, DType::f32);
  const Tensor large = communicator_.allocate(std::int64_t{1} << 18, DType::f32);
  const auto seconds = [&](const Tensor& data) {
    return median_seconds(communicator_, 7, [&] { communicator_.all_reduce(data, "link").wait(); });
  };
  const double many = seconds(large), few = seconds(small);
  const double bytes = static_cast<double>(large.bytes() - small.bytes());
  return {few, bytes / std::max(many - few, 1e-9)};
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

std::string Reducer::describe_plan() const {
  std::string text;
  for (std::size_t b = 0; b < plan().buckets.size(); ++b) {
    const BucketPlan::Bucket& bucket = plan().buckets[b];
    const auto name = [&](const BucketPlan::Slot& slot) {
      return buckets_->parameters()[static_cast<std::size_t>(slot.parameter)].name();
    };
    const double kib = static_cast<double>(buckets_->all()[b].memory.bytes()) / 1024;
    text += fmt::format("bucket {}: {:>9.1f} KiB {}, {}", b, kib, bucket.dtype,
                        name(bucket.slots.front()));
    if (bucket.slots.size() > 1)
      text += fmt::format(" .. {} ({} parameters)", name(bucket.slots.back()), bucket.slots.size());
    text += '\n';
  }
  return text;
}

std::size_t Reducer::bytes() const { return buckets_->bytes(); }

std::size_t Reducer::largest_bucket() const {
  std::size_t largest = 0;
  for (const auto& bucket : buckets_->all()) largest = std::max(largest, bucket.travelling.bytes());
  return largest;
}

std::int64_t Reducer::parameters() const {
  std::int64_t elements = 0;
  for (const GradientSize& size : buckets_->sizes()) elements += size.numel;
  return elements;
}

}  // namespace lockstep::dist
