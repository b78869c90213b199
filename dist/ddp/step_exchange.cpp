#include "lockstep/dist/ddp/step_exchange.h"

#include <algorithm>

namespace lockstep::dist {

StepExchange::StepExchange(Communicator& communicator, NonFinite policy)
    : communicator_(communicator), policy_(policy), all_(index(communicator.size())) {
  for (auto* seconds : {&report_.compute_seconds, &report_.wait_seconds,
                        &statistics_.compute_seconds, &statistics_.wait_seconds})
    seconds->resize(all_.size());
  statistics_.slowest.resize(all_.size());
  computing_since_ = communicator.now();
  waited_before_ = communicator.waited();
  exposed_before_ = communicator.exposed();
}

void StepExchange::write(StepMetadata& metadata) {
  const Seconds elapsed = communicator_.now() - computing_since_;
  metadata.compute_seconds = (elapsed - (communicator_.waited() - waited_before_)).count();
  metadata.wait_seconds = last_wait_;  // in the step before: this one's is not known yet
}

void StepExchange::send(const GradientBuckets& buckets) {
  if (ragged_) mine.origin = {};  // ranks are at different places of the epoch
  const Tensor& metadata = buckets.metadata();
  metadata.fill_zero();
  const std::int64_t begin = communicator_.rank() * metadata_elements;
  visit_floating("reducer", metadata.dtype(), [&](auto zero) {
    to_elements(mine, metadata.slice(begin, begin + metadata_elements).span<decltype(zero)>());
  });
  buckets.send_trailer();
  mine.steps_digest = 0;  // the digest of the optimizer's steps begins anew
}

StepOutcome StepExchange::read(const GradientBuckets& buckets) {
  buckets.fetch_trailer();
  const Tensor& metadata = buckets.metadata();
  visit_floating("reducer", metadata.dtype(), [&](auto zero) {
    const auto all = std::span<const decltype(zero)>(metadata.span<decltype(zero)>());
    for (std::size_t r = 0; r < all_.size(); ++r)
      all_[r] = from_elements(all.subspan(r * metadata_elements, metadata_elements));
  });
  const StepOutcome outcome = decide_step(all_, policy_);
  ragged_ = ragged_ || windows_are_ragged(all_);
  report_.verdict = outcome.verdict;
  report_.weight = outcome.weight;
  report_.all_joined = outcome.all_joined;
  ++statistics_.steps;
  for (std::size_t r = 0; r < all_.size(); ++r) {
    statistics_.compute_seconds[r] += report_.compute_seconds[r] = all_[r].compute_seconds;
    statistics_.wait_seconds[r] += report_.wait_seconds[r] = all_[r].wait_seconds;
  }
  const auto slowest = std::ranges::max_element(report_.compute_seconds);
  ++statistics_.slowest[static_cast<std::size_t>(slowest - report_.compute_seconds.begin())];
  return outcome;
}

void StepExchange::ended(StepVerdict verdict, int) {
  if (verdict != StepVerdict::commit) report_.verdict = verdict;  // else it is what was read
  statistics_.skipped += verdict == StepVerdict::skip;
  const Seconds waited = communicator_.waited();
  last_wait_ = (waited - waited_before_).count();
  waited_before_ = waited;
  statistics_.exposed_seconds = (communicator_.exposed() - exposed_before_).count();
  computing_since_ = communicator_.now();
}

}  // namespace lockstep::dist
