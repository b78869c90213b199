#include "lockstep/dist/collectives/queued_communicator.h"

#include <algorithm>

namespace lockstep::dist {

Work QueuedCommunicator::append(const CollectiveCall& arguments, std::string_view name,
                                Algorithm algorithm, RegionPlace place) {
  check_is_rank(arguments.operation, name);
  try {
    if (!failure_ && next_ - front_ == queue_length) wait(front_, {});
  } catch (const CommError&) {
    // Kept in failure_.
  }
  if (failure_) return Work(this, next_);  // which throws failure_ when it is waited for
  Call& call = queue_[next_ % queue_length];
  call.header = CallHeader{.operation = arguments.operation,
                           .algorithm = algorithm,
                           .dtype = arguments.buffer.dtype(),
                           .root = arguments.root,
                           .region = place.region,
                           .sequence = next_,
                           .count = arguments.buffer.numel(),
                           .offset = place.offset};
  call.header.set_name(name);
  call.arguments = arguments;
  *std::copy_n(name.begin(), std::min(name.size(), call.name.size() - 1), call.name.begin()) = 0;
  recorder_.called(call.header, trace::here.recorder ? now() : roughly_now());
  const Work work(this, next_++);
  try {
    advance(false);
  } catch (const CommError&) {
    // Kept in failure_: the Work throws it.
  }
  return work;
}

// The only place where calls begin and end, one after another.
bool QueuedCommunicator::advance(bool timed) {
  if (failure_) std::rethrow_exception(failure_);
  bool moved = false;
  try {
    while (front_ < next_) {
      if (!begun_) begin(front());
      begun_ = true;
      const Progress progress = carry_on(front());
      moved |= progress != Progress::none;
      if (progress != Progress::ended) break;
      front().arguments = {};  // keeps no memory
      begun_ = false;
      if (timed) finished_ = now();
      recorder_.finished(front_, timed ? std::optional(finished_) : std::nullopt,
                         front().name.data());
      ++front_;
    }
  } catch (const CommError& error) {
    give_up(error);  // tells the other ranks, and throws
  }
  return moved;
}

bool QueuedCommunicator::progress(std::uint64_t sequence) {
  if (sequence >= front_) advance();
  return sequence < front_;
}

void QueuedCommunicator::wait(std::uint64_t sequence, std::optional<Seconds> timeout) {
  constexpr unsigned untimed = 16;  // rounds: a short wait does not look at the slow clock
  const Seconds limit = timeout.value_or(watch_.timeout());
  std::optional<Seconds> start;
  unsigned round = 0;
  while (sequence >= front_) {
    if (advance(start.has_value())) {
      round = 0;
      watch_.moved();
      continue;
    }
    Seconds idle(0);
    if (round >= untimed || !spins(round)) {
      const Seconds time = now();
      start = start.value_or(time);
      idle = watch_.look(time, limit);
    }
    try {
      if (idle > limit) look_again_or_time_out(limit);
      relax(round++, idle > limit / 2);
    } catch (const CommError& error) {
      give_up(error);
    }
  }
  if (start) waited_ += finished_ - *start;
}

}  // namespace lockstep::dist
