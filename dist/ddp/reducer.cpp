#include "lockstep/dist/ddp/reducer.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::dist {

using Divisor = Contribution::Divisor;

namespace {

/// What every rank throws at once, having read the same messages.
struct AgreedError : StateError {
  using StateError::StateError;
};

/// The first line of the exception that is being handled, unless the other ranks have it, too.
std::optional<std::string> news_for_others() {
  try {
    throw;
  } catch (const AgreedError&) {
    return {};
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    return std::string(text.substr(0, std::min<std::size_t>(text.find('\n'), 300)));
  } catch (...) {
    return "of no known kind";
  }
}

}  // namespace

// ---- windows ----

// Between backwards a gradient is local only while a window is open; zero_grad gives it up.
bool Reducer::window_open() const {
  return std::ranges::any_of(buckets_->parameters(), [](const Parameter& parameter) {
    return parameter.gradient_state() == GradientState::local;
  });
}

void Reducer::enter_window(const Contribution& contribution) {
  if (!window_open()) window_ = {};
  for (std::size_t i = 0; i < entries_.size() && window_.weight > 0; ++i) check_in_window(i);
  window_.weight += contribution.weight;
  if (window_.contribution.kind == Divisor::none) window_.contribution = contribution;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Parameter& parameter = buckets_->parameters()[i];
    if (parameter.gradient_state() == GradientState::nothing)
      entries_[i].used = entries_[i].averaged = false;
    if (parameter.pending() > 0 && contribution.kind != Divisor::none) entries_[i].used = true;
  }
}

// Within a window all gradients have the same parts in them, or none.
void Reducer::check_in_window(std::size_t i) const {
  const Parameter& parameter = buckets_->parameters()[i];
  check<StateError>(
      !entries_[i].averaged || parameter.gradient_state() != GradientState::local,
      "[backward] an optimizer has stepped on the local gradient of '{}': zero_grad() "
      "before the next backward",
      parameter.name());
  check<StateError>(!entries_[i].used || parameter.gradient_state() != GradientState::nothing,
                    "[backward] the gradient of '{}' was zeroed within a window, those of other "
                    "parameters were not",
                    parameter.name());
}

void Reducer::refuse_synchronized() const {
  for (const Parameter& parameter : buckets_->parameters())
    check<StateError>(
        parameter.gradient_state() != GradientState::synchronized,
        "[backward] the gradient of '{}' is synchronized already; {}: zero_grad() first (if it is "
        "in no optimizer, DistributedDataParallel::zero_grad()){}",
        parameter.name(),
        steps_early() ? "an optimizer has stepped on it (optim::Overlap)"
                      : "a window, or a weight whose total is to be summed, cannot be added to it",
        steps_early() ? "" : ", or give a Weight with a total");
}

// ---- one backward ----

void Reducer::backward_begins(const Contribution& contribution) {
  settle();
  syncing_ = contribution.sync && paused_ == 0;
  eager_ = contribution.eager;
  if (contribution.kind == Divisor::summed || !syncing_ || steps_early()) refuse_synchronized();
  recording_ = StepGraph::recording();
  if (recording_) check_recordable(contribution);
  enter_window(contribution);
  if (!syncing_) return;
  began_ = times();
  launched_ = 0;
  already_reduced_ = false;
  bad_parameter_ = -1;
  ready_.clear();
  for (GradientBuckets::Bucket& bucket : buckets_->all()) bucket.pending = 0;
  if (entries_.empty()) return;
  visit_floating("reducer", buckets_->used().dtype(), [&](auto zero) {
    auto* used = buckets_->used().data<decltype(zero)>();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      used[i] = begin(i) ? 1 : 0;
      if (buckets_->parameters()[i].pending() > 0) ++buckets_->of(i).pending;
    }
  });
  launch_ready();
}

// Brings a gradient's slot into the state in which the ranks' slots can be summed, and tells
// whether this rank has something to contribute.
bool Reducer::begin(std::size_t i) {
  const Parameter& parameter = buckets_->parameters()[i];
  const GradientState state = parameter.gradient_state();
  if (state == GradientState::local) return entries_[i].used;
  if (state == GradientState::synchronized) {
    already_reduced_ = true;
    if (communicator_.rank() == 0) return true;
  }
  parameter.zero_grad();
  if (parameter.pending() == 0) parameter.gradient_slot().fill_zero();
  return entries_[i].used;
}

void Reducer::gradient_ready(const Parameter& parameter) {
  if (!syncing_) return;
  const std::size_t i = index_of(parameter);
  if (!planned_) {
    ready_.push_back(static_cast<int>(i));
    ready_at_[i] = (communicator_.now() - began_.now).count();
  }
  --buckets_->of(i).pending;
  launch_ready();
  // The computing thread carries the collectives on; the last one launched ends after all others.
  if (launched_ > 0) buckets_->all()[launched_ - 1].work.progress();
}

void Reducer::launch_ready() {
  if (!eager_) return;
  auto& buckets = buckets_->all();
  for (; launched_ < buckets.size() && buckets[launched_].pending == 0; ++launched_)
    launch(buckets[launched_], launched_ + 1 == buckets.size());
}

void Reducer::launch(GradientBuckets::Bucket& bucket, bool last) {
  if (recording_) {
    bucket.work = communicator_.all_reduce(bucket.memory, bucket.name);
    return;
  }
  if (options_.nonfinite != NonFinite::ignore) look_for_nonfinite(bucket);
  if (last) write_metadata();
  if (options_.hook) return launch_hook(bucket, last);
  copy_to_host(bucket);
  bucket.work = communicator_.all_reduce(bucket.travelling, bucket.name);
}

void Reducer::receive_sums() {
  for (GradientBuckets::Bucket& bucket : buckets_->all()) {
    if (options_.hook) {
      bucket.work.finish();  // it may read on the host
      options_.hook->complete(view(bucket), communicator_);
    } else {
      bucket.work.wait();
      copy_from_host(bucket);
    }
    if (steps_early()) step_early(bucket);
  }
}

void Reducer::look_for_nonfinite(const GradientBuckets::Bucket& bucket) {
  if (bad_parameter_ >= 0 || kernels::all_finite(bucket.memory)) return;
  for (const int p : bucket.members) {
    const Tensor gradient =
        buckets_->parameters()[static_cast<std::size_t>(p)].gradient_slot().to(Device{});
    visit_floating("reducer", gradient.dtype(), [&](auto zero) {
      const auto* values = gradient.data<decltype(zero)>();
      const auto* bad = std::find_if_not(values, values + gradient.numel(),
                                         [](auto value) { return std::isfinite(value); });
      if (bad == values + gradient.numel() || bad_parameter_ >= 0) return;
      bad_parameter_ = p;
      bad_element_ = bad - values;
    });
  }
}

void Reducer::write_metadata() {
  const Times now = times();
  StepMetadata message;
  message.weight = window_.weight;
  message.divisor = window_.contribution.divisor;
  message.kind = window_.contribution.kind;
  message.compute_seconds = (now.now - step_start_.now - (now.waited - step_start_.waited)).count();
  message.wait_seconds = last_wait_;
  message.plan = plan_digest_;
  message.steps = std::exchange(steps_digest_, 0);
  message.already_reduced = already_reduced_ ? 1 : 0;
  message.joined = joined_ ? 1 : 0;
  message.bad_parameter = bad_parameter_;
  message.bad_element = bad_element_;
  const Tensor& control = buckets_->metadata();
  control.fill_zero();
  const std::int64_t mine = communicator_.rank() * metadata_elements;
  visit_floating("reducer", control.dtype(), [&](auto zero) {
    write(message, control.slice(mine, mine + metadata_elements).span<decltype(zero)>());
  });
  buckets_->send_notes();
}

StepOutcome Reducer::read_metadata() {
  buckets_->all().back().work.finish();
  buckets_->fetch_notes();
  const Tensor& control = buckets_->metadata();
  for (std::size_t r = 0; r < messages_.size(); ++r)
    visit_floating("reducer", control.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const auto all = std::span<const T>(control.span<T>());
      messages_[r] = read(all.subspan(r * metadata_elements, metadata_elements));
    });
  const StepOutcome agreement = decide_step(messages_, options_.nonfinite);
  report_.verdict = agreement.verdict;
  report_.weight = agreement.weight;
  report_.all_joined = agreement.all_joined;
  ++statistics_.steps;
  for (std::size_t r = 0; r < messages_.size(); ++r) {
    statistics_.compute_seconds[r] += report_.compute_seconds[r] = messages_[r].compute_seconds;
    statistics_.wait_seconds[r] += report_.wait_seconds[r] = messages_[r].wait_seconds;
  }
  const auto slowest = std::ranges::max_element(report_.compute_seconds);
  ++statistics_.slowest[static_cast<std::size_t>(slowest - report_.compute_seconds.begin())];
  return agreement;
}

void Reducer::backward_ends() {
  if (!syncing_ || entries_.empty()) return;
  eager_ = true;
  launch_ready();
  if (recording_) return take_sums();
  if (can_defer()) return defer();
  receive_sums();
  const StepOutcome agreement = read_metadata();
  if (agreement.verdict == StepVerdict::stop) stop(agreement);
  if (steps_early()) check_final(agreement);
  if (agreement.verdict == StepVerdict::commit) commit(agreement);
  if (report_.verdict == StepVerdict::skip) {
    ++statistics_.skipped;
    discard();
    if (options_.hook) options_.hook->skipped();
  }
  window_ = {};
  for (Entry& entry : entries_) entry.used = false;
  ++synchronizations_;
  if (options_.after_sync) options_.after_sync(report_.verdict, agreement.source);
  if (!planned_ && agreement.weight > 0) rebuild_buckets(agreement.source);
  const Times now = times();
  last_wait_ = (now.waited - step_start_.waited).count();
  step_start_ = now;
}

void Reducer::commit(const StepOutcome& agreement) {
  for (const GradientBuckets::Bucket& bucket : buckets_->all()) {
    if (agreement.scale != 1) kernels::scale(agreement.scale, bucket.memory, bucket.memory, false);
    if (options_.nonfinite != NonFinite::ignore) look_for_nonfinite(bucket);
  }
  if (bad_parameter_ >= 0) return overflowed();
  visit_floating("reducer", buckets_->used().dtype(), [&](auto zero) {
    const auto* used = buckets_->used().data<decltype(zero)>();
    for (std::size_t i = 0; i < entries_.size(); ++i)
      buckets_->parameters()[i].set_gradient_state(used[i] > 0 ? GradientState::synchronized
                                                               : GradientState::nothing);
  });
}

void Reducer::discard() noexcept {
  for (const Parameter& parameter : buckets_->parameters()) parameter.zero_grad();
}

// Each rank's gradient was finite and the sum is not: it has the same bits everywhere, so all ranks
// see it.
void Reducer::overflowed() {
  report_.verdict = options_.nonfinite == NonFinite::skip ? StepVerdict::skip : StepVerdict::stop;
  if (report_.verdict == StepVerdict::skip) return;
  meet_before_stop();
  throw AgreedError(fmt::format(
      "[backward] element {} of the gradient of '{}' is finite on each rank, but not their sum",
      bad_element_, buckets_->parameters()[static_cast<std::size_t>(bad_parameter_)].name()));
}

// Every rank has read the same messages, and throws the same error; none leaves before all have
// read them.
void Reducer::stop(const StepOutcome& agreement) {
  meet_before_stop();
  if (!agreement.problem.empty())
    throw AgreedError(fmt::format("[backward] {}", agreement.problem));
  const StepMetadata& bad = messages_[index(agreement.bad_rank)];
  throw AgreedError(fmt::format(
      "[backward] element {} of the gradient of '{}' is infinite or NaN on rank {}",
      bad.bad_element, buckets_->parameters()[static_cast<std::size_t>(bad.bad_parameter)].name(),
      agreement.bad_rank));
}

void Reducer::meet_before_stop() {
  try {
    communicator_.barrier("stop").wait();
  } catch (const CommError&) {
    // Whoever is gone by now has read them, too.
  }
}

// The other ranks go on to launch this backward's buckets. Nothing that this rank sends later may
// be taken for them.
void Reducer::backward_failed() noexcept {
  if (communicator_.size() > 1)
    if (const auto message = news_for_others())
      communicator_.abort(fmt::format("[backward] rank {} left it by an exception: {}",
                                      communicator_.rank(), *message));
  window_ = {};
  discard();
}

// ---- without a backward ----

void Reducer::synchronize(double weight) {
  check<UsageError>(std::isfinite(weight) && weight >= 0,
                    "[synchronize] weight must be 0 or more, got {}", weight);
  check<StateError>(paused_ == 0, "[synchronize] within a no_sync scope");
  try {
    backward_begins({weight, 1, Divisor::none, true});
    backward_ends();
  } catch (...) {
    backward_failed();
    throw;
  }
}

void Reducer::step_begins(const Parameter& parameter, bool local) {
  if (parameter.gradient_state() != GradientState::local) return;
  check<StateError>(local,
                    "[step] the gradient of '{}' is not synchronized: run a backward that "
                    "synchronizes before the step",
                    parameter.name());
  // The step wants the mean over this rank's window; its slot holds the sum.
  Entry& entry = entries_[index_of(parameter)];
  if (std::exchange(entry.averaged, true) || window_.weight == 0) return;
  const Tensor& slot = parameter.gradient_slot();
  if (window_.weight != 1) kernels::scale(1 / window_.weight, slot, slot, false);
}

void Reducer::average_parameters() {
  for (const Parameter& parameter : buckets_->parameters())
    check<StateError>(parameter.gradient_state() != GradientState::local,
                      "[average_parameters] the gradient of '{}' is local: zero_grad() first",
                      parameter.name());
  discard();
  for (const Parameter& parameter : buckets_->parameters())
    parameter.gradient_slot().copy_from(parameter.value());
  for (GradientBuckets::Bucket& bucket : buckets_->all()) {
    copy_to_host(bucket);
    bucket.work = communicator_.all_reduce(bucket.travelling, "average " + bucket.name);
  }
  for (GradientBuckets::Bucket& bucket : buckets_->all()) {
    bucket.work.wait();
    copy_from_host(bucket);
    kernels::scale(1.0 / communicator_.size(), bucket.memory, bucket.memory, false);
  }
  for (const Parameter& parameter : buckets_->parameters())
    parameter.value().copy_from(parameter.gradient_slot());
}

}  // namespace lockstep::dist
