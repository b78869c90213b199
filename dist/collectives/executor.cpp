#include "lockstep/dist/collectives/executor.h"

#include <algorithm>
#include <cstring>

#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {
namespace {

std::size_t whole_cache_lines(std::size_t bytes) {
  constexpr std::size_t line = 64;
  return (bytes + line - 1) / line * line;
}

}  // namespace

Executor::Executor(Transport& transport, FlightRecorder& recorder)
    : transport_(transport),
      recorder_(recorder),
      sources_(index(transport.size())),
      destinations_(index(transport.size())) {}

void Executor::start(const Collective& collective) {
  collective_ = collective;
  element_ = size_of(collective.header.dtype);
  prepare(collective.input);
  index_ = 0;
  begin_step();
}

void Executor::prepare(const PlanInput& input) {
  if (input != planned_) {  // calls repeat, and planning takes as long as a small call
    planned_.world = 0;     // if make_plan throws, no input equals this one
    make_plan(input, plan_);
    needs_ = scratch_of(plan_);
    planned_ = input;
  }
  slot_bytes_ = whole_cache_lines(bytes(needs_.slot_elements));
  const std::size_t slots = index(needs_.slots) * slot_bytes_;
  const std::size_t block = needs_.sums ? std::min(block_bytes, bytes(input.count)) : 0;
  scratch_ = small_.data();
  if (slots + block > small_.size()) {
    large_ = Tensor::empty({static_cast<std::int64_t>(slots + block)}, DType::u8);
    scratch_ = large_.raw();
  }
  block_ = scratch_ + slots;
}

void Executor::begin_step() {
  if (done()) {
    if (large_.defined()) large_ = Tensor();
    return;
  }
  step_ = plan_[index_];
  sent_ = received_ = 0;
  to_send_ = step_.to < 0 ? 0 : header() + bytes(step_.send.size());
  to_receive_ = step_.from < 0 ? 0 : header() + bytes(step_.receive.size());
  if (step_.header && step_.to >= 0) pack();
}

bool Executor::progress() {
  bool moved = false;
  while (!done()) {
    const bool sent = push();
    const bool received = received_ < head(to_receive_) ? pull_head() : pull_payload();
    if (sent_ == to_send_ && received_ == to_receive_) {
      act();
      recorder_.stepped(step_);
      ++index_;
      begin_step();
    } else if (!sent && !received) {
      break;
    }
    moved = true;
  }
  return moved;
}

void Executor::pack() {
  std::memcpy(outgoing_.data(), &collective_.header, header_bytes);
  if (const std::size_t payload = head(to_send_) - header_bytes; payload > 0)
    std::memcpy(outgoing_.data() + header_bytes, at(step_.send.begin), payload);
}

bool Executor::push() {
  const std::size_t before = sent_, head = this->head(to_send_);
  while (sent_ < to_send_) {
    const std::span<const std::byte> next =
        sent_ < head ? std::span(outgoing_).first(head).subspan(sent_)
                     : std::span(at(step_.send.begin) + (sent_ - header()), to_send_ - sent_);
    const std::size_t count = transport_.send(step_.to, next);
    if (count == 0) break;
    sent_ += count;
  }
  return sent_ > before;
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
  if (received_ == head) {
    unpack(head - header_bytes);
    pull_payload();
  }
  return received_ > before;
}

void Executor::unpack(std::size_t payload) {
  if (payload == 0) return;
  bytes_moved_ += payload;
  if (step_.into == Step::Into::sum)
    add(place(), incoming_.data() + header_bytes, payload);
  else
    std::memcpy(place(), incoming_.data() + header_bytes, payload);
}

// A tree of two is one addition.
void Executor::add(std::byte* target, const std::byte* other, std::size_t bytes) const {
  const std::array<const std::byte*, 2> both{target, other};
  kernels::tree_reduce(collective_.header.dtype, both, std::span(&target, 1),
                       static_cast<std::int64_t>(bytes / element_));
}

bool Executor::pull_payload() {
  const std::size_t before = received_;
  const bool sums = step_.into == Step::Into::sum;
  while (received_ < to_receive_) {
    std::byte* const target = place() + (received_ - header());
    const std::size_t in_block = sums ? (received_ - header()) % block_bytes : 0;
    const std::size_t rest = to_receive_ - received_;
    const std::size_t most = sums ? std::min(block_bytes - in_block, rest) : rest;
    const std::size_t count =
        transport_.receive(step_.from, {sums ? block_ + in_block : target, most});
    if (count == 0) break;
    received_ += count;
    // The block is full, or the message has ended: add it from its beginning.
    if (sums && count == most) add(target - in_block, block_, in_block + count);
  }
  bytes_moved_ += received_ - before;
  return received_ > before;
}

}  // namespace lockstep::dist
