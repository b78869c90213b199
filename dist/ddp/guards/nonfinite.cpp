#include "lockstep/dist/ddp/guards/nonfinite.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/reduce.h"

namespace lockstep::dist {

namespace {

// Its first element that is infinite or NaN; -1 if there is none.
std::int64_t first_nonfinite(const Tensor& tensor) {
  if (kernels::all_finite(tensor)) return -1;
  const Tensor host = tensor.to(Device{});
  return visit_floating("reducer", host.dtype(), [&](auto zero) -> std::int64_t {
    const auto values = host.span<decltype(zero)>();
    return std::ranges::find_if_not(values, [](auto value) { return std::isfinite(value); }) -
           values.begin();
  });
}

}  // namespace

void NonFiniteCheck::begins(bool) { found_ = {}; }

void NonFiniteCheck::launches(const GradientBuckets::Bucket& bucket) {
  if (looks_in_gradients(policy_)) look_in_gradients(bucket);
}

void NonFiniteCheck::write(StepMetadata& metadata) {
  if (steps_.saw_nonfinite()) look_in_parameters();
  metadata.bad_parameter = found_.parameter;
  metadata.bad_element = found_.element;
}

void NonFiniteCheck::look_in_gradients(const GradientBuckets::Bucket& bucket) {
  if (found_.parameter >= 0 || kernels::all_finite(bucket.memory)) return;
  for (std::size_t k = 0; k < bucket.parameters.size() && found_.element < 0; ++k) {
    found_.element = first_nonfinite(bucket.parameters[k].gradient_slot());
    if (found_.element >= 0) found_.parameter = bucket.members[k];
  }
}

void NonFiniteCheck::look_in_parameters() {
  for (std::size_t i = 0; i < parameters_.size() && found_.parameter < 0; ++i) {
    found_.element = first_nonfinite(parameters_[i].value());
    if (found_.element >= 0) found_.parameter = static_cast<int>(i);
  }
}

void NonFiniteCheck::look_in_sums(const GradientBuckets& buckets, StepOutcome& outcome) {
  if (!looks_in_gradients(policy_)) return;
  for (const GradientBuckets::Bucket& bucket : buckets.all()) look_in_gradients(bucket);
  if (found_.parameter < 0) return;
  outcome.verdict = policy_ == NonFinite::skip ? StepVerdict::skip : StepVerdict::stop;
  outcome.problem =
      fmt::format("element {} of the gradient of '{}' is finite on each rank, but not their sum",
                  found_.element, parameters_[static_cast<std::size_t>(found_.parameter)].name());
}

void NonFiniteCheck::check_parameters(std::string_view operation, bool known) {
  found_ = {};
  if (known ? steps_.saw_nonfinite() : policy_ == NonFinite::report) look_in_parameters();
  if (found_.parameter >= 0)
    stop_all_ranks(
        communicator_,
        fmt::format("[{}] {}", operation, describe_parameter(found_.parameter, found_.element)));
}

void NonFiniteCheck::check_at_end(std::string_view operation) {
  found_ = {};
  look_in_parameters();
  if (found_.parameter >= 0)
    fail<StateError>("[{}] {}", operation, describe_parameter(found_.parameter, found_.element));
}

std::string NonFiniteCheck::describe_parameter(int parameter, std::int64_t element) const {
  return fmt::format(
      "element {} of {} has become infinite or NaN: a learning rate that is too large, or data "
      "that is not finite? (NonFinite::stop tells in whose gradient it begins)",
      element, parameters_[static_cast<std::size_t>(parameter)]);
}

Problem NonFiniteCheck::describe(const StepMetadata& metadata, int rank) const {
  if (policy_ == NonFinite::report)
    return {describe_parameter(metadata.bad_parameter, metadata.bad_element), {}};
  const Membership& ranks = communicator_.membership();
  return {fmt::format("element {} of the gradient of '{}' is infinite or NaN on rank {}",
                      metadata.bad_element,
                      parameters_[static_cast<std::size_t>(metadata.bad_parameter)].name(),
                      ranks.known_as(rank)),
          ranks.blame(rank, Fault::nonfinite)};
}

}  // namespace lockstep::dist
