#include "lockstep/dist/collectives/executor.h"

#include <algorithm>
#include <cstring>

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
    } else if (!received) {
      return moved || sent;  // push() has sent all that could be sent
    }
    moved = true;
  }
  return moved;
}

bool Executor::push() {
  const std::size_t before = sent_, head = this->head(to_send_);
  while (sent_ < to_send_) {
    const std::size_t from = std::max(sent_, head);
    const std::span<const std::byte> rest(at(step_.send.begin) + (from - header()),
                                          to_send_ - from);
    const std::size_t count =
        sent_ < head
            ? transport_.send_both(step_.to, std::span(outgoing_).first(head).subspan(sent_), rest)
            : transport_.send(step_.to, rest);
    if (count == 0) break;
    sent_ += count;
  }
  return sent_ > before;
}

bool Executor::pull_head() {
  const std::size_t before = received_, head = this->head(to_receive_);
  const std::size_t count =
      transport_.receive_both(step_.from, std::span(incoming_).first(head).subspan(before), room());
  const std::size_t of_head = std::min(count, head - before);
  received_ += of_head;
  if (before < header_bytes && received_ >= header_bytes) {
    CallHeader theirs;
    std::memcpy(&theirs, incoming_.data(), header_bytes);
    compare(collective_.header, theirs, step_.from);
    recorder_.heard(step_.from, theirs);
  }
  if (received_ == head) {
    unpack(head - header_bytes);
    took(count - of_head);
    pull_payload();
  }
  return count > 0;
}

void Executor::took(std::size_t count) {
  const std::span<std::byte> room = this->room();
  const std::size_t begin = received_ - header();
  received_ += count;
  bytes_moved_ += count;
  // The block is full, or the message has ended: add it from its beginning.
  if (step_.into == Step::Into::sum && count > 0 && count == room.size()) {
    const std::size_t in_block = begin % block_bytes;
    add(place() + (begin - in_block), block_, in_block + count);
  }
}

bool Executor::pull_payload() {
  const std::size_t before = received_;
  while (received_ < to_receive_) {
    const std::size_t count = transport_.receive(step_.from, room());
    if (count == 0) break;
    took(count);
  }
  return received_ > before;
}

}  // namespace lockstep::dist
