#include "lockstep/dist/collectives/executor.h"

#include <algorithm>
#include <cstring>

#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {

void Executor::start(const Collective& collective) {
  collective_ = collective;
  element_ = size_of(collective.header.dtype);
  if (collective.input != planned_) {
    planned_.world = 0;  // until the new plan is complete
    make_plan(collective.input, plan_);
    needs_ = scratch_of(plan_);
    planned_ = collective.input;
  }
  prepare_scratch();
  index_ = 0;
  begin_step();
}

void Executor::begin_step() {
  if (done()) {
    large_ = Tensor();
    return;
  }
  step_ = plan_[index_];
  const std::size_t header = step_.header ? header_bytes : 0;
  sent_ = received_ = 0;
  to_send_ = step_.to < 0 ? 0 : header + bytes(step_.send.size());
  to_receive_ = step_.from < 0 ? 0 : header + bytes(step_.receive.size());
  if (const std::size_t head = this->head(to_send_); head > 0) {
    std::memcpy(outgoing_.data(), &collective_.header, header_bytes);
    if (head > header_bytes)
      std::memcpy(outgoing_.data() + header_bytes, at(step_.send.begin), head - header_bytes);
  }
}

bool Executor::progress() {
  bool moved = false;
  while (!done()) {
    const bool sent = push();
    const bool received = pull();
    if (sent_ == to_send_ && received_ == to_receive_) {
      act();
      ++index_;
      begin_step();
    } else if (!sent && !received) {
      break;
    }
    moved = true;
  }
  return moved;
}

bool Executor::push() {
  const std::size_t before = sent_, head = this->head(to_send_);
  const std::size_t header = step_.header ? header_bytes : 0;
  while (sent_ < to_send_) {
    const std::byte* const next =
        sent_ < head ? outgoing_.data() + sent_ : at(step_.send.begin) + (sent_ - header);
    const std::size_t most = (sent_ < head ? head : to_send_) - sent_;
    const std::size_t count = transport_.send(step_.to, {next, most});
    if (count == 0) break;
    sent_ += count;
  }
  return sent_ > before;
}

bool Executor::pull() {
  if (received_ == to_receive_) return false;
  return received_ < head(to_receive_) ? pull_head() : pull_payload();
}

bool Executor::pull_head() {
  const std::size_t before = received_, head = this->head(to_receive_);
  received_ += transport_.receive(step_.from, std::span(incoming_).first(head).subspan(before));
  if (before < header_bytes && received_ >= header_bytes) {
    CallHeader theirs;
    std::memcpy(&theirs, incoming_.data(), header_bytes);
    compare(collective_.header, theirs, step_.from);
    recorder_.heard(step_.from, theirs);
  }
  if (const std::size_t payload = head - header_bytes; payload > 0 && received_ == head) {
    bytes_moved_ += payload;
    if (step_.into == Step::Into::sum)
      add(place(), incoming_.data() + header_bytes, payload);
    else
      std::memcpy(place(), incoming_.data() + header_bytes, payload);
  }
  return received_ > before;
}

bool Executor::pull_payload() {
  const std::size_t before = received_, header = step_.header ? header_bytes : 0;
  const bool sums = step_.into == Step::Into::sum;
  while (received_ < to_receive_) {
    std::byte* const target = place() + (received_ - header);
    const std::size_t in_block = sums ? (received_ - header) % block_bytes : 0;
    const std::size_t rest = to_receive_ - received_;
    const std::size_t most = sums ? std::min(block_bytes - in_block, rest) : rest;
    const std::size_t count =
        transport_.receive(step_.from, {sums ? block_ + in_block : target, most});
    if (count == 0) break;
    received_ += count;
    if (sums && count == most) add(target - in_block, block_, in_block + count);
  }
  bytes_moved_ += received_ - before;
  return received_ > before;
}

void Executor::add(std::byte* target, const std::byte* other, std::size_t bytes) const {
  const std::array<const std::byte*, 2> both{target, other};
  kernels::tree_reduce(collective_.header.dtype, both, std::span(&target, 1),
                       static_cast<std::int64_t>(bytes / element_));
}

}  // namespace lockstep::dist
