// How a communicator breaks: second reading.

#include <new>

#include "lockstep/dist/collectives/queued_communicator.h"

namespace lockstep::dist {

void QueuedCommunicator::check_on_host(const CollectiveCall& call, std::string_view name) {
  for (const Tensor* tensor : {&call.buffer, &call.part})
    if (tensor->defined() && tensor->device() != Device{})
      fail<DeviceError>("[{}] '{}' lies on {}, this communicator reaches the cpu alone",
                        name_of(call.operation), name, tensor->device().to_string());
}

void QueuedCommunicator::abort(std::string_view reason) noexcept {
  if (failure_) return;
  try {
    failure_ = std::make_exception_ptr(CommError(std::string(reason)));
  } catch (const std::bad_alloc&) {
    failure_ = std::current_exception();
  }
  tell_failure(reason, false);
  if (linked_) linked_->abort(reason);
}

void QueuedCommunicator::give_up(const CommError& why) {
  give_up(why, name_of(front().header.operation),
          fmt::format("#{} '{}'", front_, front().name.data()));
}

void QueuedCommunicator::give_up(const CommError& why, std::string_view operation,
                                 std::string_view call) {
  if (failure_) std::rethrow_exception(failure_);
  const bool consequence = dynamic_cast<const PeerError*>(&why) != nullptr;
  std::string cause = why.what();
  if (const std::string verdict = consequence ? watch_.verdict() : ""; !verdict.empty())
    if (cause.find("timed out") == std::string::npos)  // it ended before its reason was heard
      cause = fmt::format("{} ({})", verdict, cause);
  const std::string message = fmt::format("[{}] rank {}, {}: {}", operation, rank(), call, cause);
  Blame blame = why.blame ? *why.blame : Blame{};
  if (const auto* lost = dynamic_cast<const LostPeer*>(&why))  // a transport numbers its group
    blame = membership().blame(lost->rank, lost->how);
  failure_ = consequence ? std::make_exception_ptr(blaming(blame, PeerError(message)))
                         : std::make_exception_ptr(blaming(blame, CommError(message)));
  const std::string reason =
      fmt::format("rank {} gave up in {} {}: {}", rank(), operation, call, cause);
  tell_failure(reason, consequence);
  if (linked_) linked_->abort(reason);
  std::rethrow_exception(failure_);
}

void QueuedCommunicator::check_is_rank(Operation operation, std::string_view name) const {
  check<StateError>(forks() == made_in_,
                    "[{}] '{}': this process is a child of the one that has joined the world: it "
                    "is no rank",
                    name_of(operation), name);
}

}  // namespace lockstep::dist
