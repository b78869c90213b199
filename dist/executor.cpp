#include "lockstep/dist/executor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/kernels/fold.h"

namespace lockstep::dist {

namespace {

constexpr std::size_t header_bytes = sizeof(Signature);

// What is to be added arrives in blocks that are still in the cache when they are added. A multiple
// of every element size.
constexpr std::size_t block_bytes = 32 * 1024;

constexpr std::size_t cache_line = 64;

std::size_t round_up(std::size_t bytes) {
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

Executor::Executor(Transport& transport, FlightRecorder& recorder)
    : transport_(transport),
      recorder_(recorder),
      sources_(static_cast<std::size_t>(transport.size())),
      destinations_(static_cast<std::size_t>(transport.size())) {}

void Executor::start(const Job& job) {
  job_ = job;
  element_ = size_of(job.signature.dtype);
  const Plan& plan = job_.plan;
  slot_bytes_ = round_up(bytes(plan.part(plan.rank).size()));
  std::size_t scratch = static_cast<std::size_t>(plan.slots()) * slot_bytes_;
  if (plan.sums()) scratch = std::min(block_bytes, bytes(plan.part(0).size()));
  if (scratch > 0) scratch_ = Tensor::empty({static_cast<std::int64_t>(scratch)}, DType::u8);
  steps_ = plan.steps();
  index_ = -1;
  next_step();
}

void Executor::next_step() {
  ++index_;
  if (done()) {
    scratch_ = Tensor();
    return;
  }
  step_ = job_.plan.step(index_);
  const std::size_t header = step_.header ? header_bytes : 0;
  sent_ = received_ = 0;
  to_send_ = step_.to < 0 ? 0 : header + bytes(step_.send.size());
  to_receive_ = step_.from < 0 ? 0 : header + bytes(step_.receive.size());
}

bool Executor::progress() {
  bool moved = false;
  while (!done()) {
    const bool sent = push();
    const bool received = pull();
    if (sent_ == to_send_ && received_ == to_receive_) {
      act();
      next_step();
      moved = true;
    } else if (sent || received) {
      moved = true;
    } else {
      break;
    }
  }
  return moved;
}

bool Executor::push() {
  bool moved = false;
  while (sent_ < to_send_) {
    const std::size_t header = step_.header ? header_bytes : 0;
    const std::byte* next = sent_ < header
                                ? reinterpret_cast<const std::byte*>(&job_.signature) + sent_
                                : at(step_.send.begin) + (sent_ - header);
    const std::size_t end = sent_ < header ? header : to_send_;
    const std::size_t count = transport_.send(step_.to, {next, end - sent_});
    if (count == 0) break;
    sent_ += count;
    moved = true;
  }
  return moved;
}

bool Executor::pull() {
  if (received_ == to_receive_) return false;
  if (!step_.header || received_ >= header_bytes) return pull_payload();
  const std::span<std::byte> rest =
      std::as_writable_bytes(std::span(&theirs_, 1)).subspan(received_);
  const std::size_t count = transport_.receive(step_.from, rest);
  if (count == 0) return false;
  received_ += count;
  if (received_ == header_bytes) {
    compare(job_.signature, theirs_, step_.from);
    recorder_.heard(step_.from, theirs_);
    pull_payload();
  }
  return true;
}

bool Executor::pull_payload() {
  const std::size_t header = step_.header ? header_bytes : 0;
  const bool sums = step_.into == Step::Into::sum;
  std::byte* const place =
      step_.into == Step::Into::slot ? slot(step_.from) : at(step_.receive.begin);
  bool moved = false;
  while (received_ < to_receive_) {
    const std::size_t done_bytes = received_ - header;
    const std::size_t in_block = sums ? done_bytes % block_bytes : 0;
    const std::size_t rest = to_receive_ - received_;
    std::byte* const next = sums ? scratch_.raw() + in_block : place + done_bytes;
    const std::size_t most = sums ? std::min(block_bytes - in_block, rest) : rest;
    const std::size_t count = transport_.receive(step_.from, {next, most});
    if (count == 0) break;
    received_ += count;
    moved = true;
    if (sums && count == most) {  // the block is whole
      std::byte* const target = place + (done_bytes - in_block);
      const std::array<const std::byte*, 2> both{target, scratch_.raw()};
      kernels::fold(job_.signature.dtype, both, std::span(&target, 1),
                    static_cast<std::int64_t>((in_block + count) / element_));
    }
  }
  return moved;
}

void Executor::act() {
  const Range own = job_.plan.part(job_.plan.rank);
  switch (step_.action) {
    case Step::Action::none: break;
    case Step::Action::copy_in: return copy_bytes(at(own.begin), job_.part, bytes(own.size()));
    case Step::Action::copy_out: return copy_bytes(job_.part, at(own.begin), bytes(own.size()));
    case Step::Action::fold_slots: return fold_slots();
    case Step::Action::fold_windows: return fold_windows();
  }
}

void Executor::fold_slots() {
  const Plan& plan = job_.plan;
  const Range own = plan.part(plan.rank);
  for (int r = 0; r < plan.world; ++r) {
    sources_[static_cast<std::size_t>(r)] = r == plan.rank ? at(own.begin) : slot(r);
  }
  destinations_[0] = at(own.begin);
  kernels::fold(job_.signature.dtype, sources_, std::span(destinations_).first(1), own.size());
}

void Executor::fold_windows() {
  const Plan& plan = job_.plan;
  const Range own = plan.part(plan.rank);
  for (int r = 0; r < plan.world; ++r) {
    const auto k = static_cast<std::size_t>(r);
    destinations_[k] = job_.window->base[k] + job_.signature.offset + bytes(own.begin);
    sources_[k] = destinations_[k];
  }
  kernels::fold(job_.signature.dtype, sources_, destinations_, own.size());
}

std::byte* Executor::slot(int peer) const {
  const int index = peer < job_.plan.rank ? peer : peer - 1;
  return scratch_.raw() + static_cast<std::size_t>(index) * slot_bytes_;
}

}  // namespace lockstep::dist
