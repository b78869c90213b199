#include "lockstep/dist/collectives/executor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {

namespace {

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

void Executor::start(const Collective& collective) {
  collective_ = collective;
  element_ = size_of(collective.header.dtype);
  if (collective.plan != outline_.plan) outline(collective.plan);
  slot_bytes_ = round_up(bytes(outline_.slot_elements));
  std::size_t scratch = static_cast<std::size_t>(outline_.slots) * slot_bytes_;
  block_at_ = scratch;
  if (outline_.sums) scratch += std::min(block_bytes, bytes(collective.plan.count));
  scratch_ = small_.data();
  if (scratch > small_.size()) {
    large_ = Tensor::empty({static_cast<std::int64_t>(scratch)}, DType::u8);
    scratch_ = large_.raw();
  }
  index_ = -1;
  next_step();
}

void Executor::outline(const Plan& plan) {
  outline_.plan.world = 0;  // until all is there
  outline_.slots = plan.slots();
  outline_.slot_elements = plan.slot_elements();
  outline_.sums = plan.sums();
  outline_.steps.clear();
  const int steps = plan.steps();
  for (int k = 0; k < steps; ++k) outline_.steps.push_back(plan.step(k));
  outline_.plan = plan;
}

void Executor::next_step() {
  ++index_;
  if (done()) {
    if (large_.defined()) large_ = Tensor();
    return;
  }
  step_ = outline_.steps[static_cast<std::size_t>(index_)];
  const std::size_t header = step_.header ? header_bytes : 0;
  sent_ = received_ = 0;
  to_send_ = step_.to < 0 ? 0 : header + bytes(step_.send.size());
  to_receive_ = step_.from < 0 ? 0 : header + bytes(step_.receive.size());
  if (packs(to_send_)) {
    std::memcpy(outgoing_.data(), &collective_.header, header_bytes);
    copy_bytes(outgoing_.data() + header_bytes, at(step_.send.begin), to_send_ - header_bytes);
  }
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
    const std::size_t count = transport_.send(step_.to, next_to_send());
    if (count == 0) break;
    sent_ += count;
    moved = true;
  }
  return moved;
}

std::span<const std::byte> Executor::next_to_send() const {
  if (packs(to_send_)) return std::span(outgoing_).first(to_send_).subspan(sent_);
  const std::size_t header = step_.header ? header_bytes : 0;
  if (sent_ < header) return std::as_bytes(std::span(&collective_.header, 1)).subspan(sent_);
  return {at(step_.send.begin) + (sent_ - header), to_send_ - sent_};
}

bool Executor::pull() {
  if (received_ == to_receive_) return false;
  const bool packed = packs(to_receive_);
  if (!packed && (!step_.header || received_ >= header_bytes)) return pull_payload();
  const std::size_t before = received_;
  const auto rest = std::span(incoming_).first(packed ? to_receive_ : header_bytes).subspan(before);
  const std::size_t count = transport_.receive(step_.from, rest);
  if (count == 0) return false;
  received_ += count;
  if (before < header_bytes && received_ >= header_bytes) {
    CallHeader theirs;
    std::memcpy(&theirs, incoming_.data(), header_bytes);
    compare(collective_.header, theirs, step_.from);
    recorder_.heard(step_.from, theirs);
    if (!packed) pull_payload();
  }
  if (packed && received_ == to_receive_) unpack();
  return true;
}

void Executor::unpack() {
  const std::byte* const payload = incoming_.data() + header_bytes;
  const std::size_t size = to_receive_ - header_bytes;
  bytes_moved_ += size;
  if (step_.into == Step::Into::sum)
    add(place(), payload, size);
  else
    copy_bytes(place(), payload, size);
}

bool Executor::pull_payload() {
  const std::size_t header = step_.header ? header_bytes : 0;
  const bool sums = step_.into == Step::Into::sum;
  std::byte* const place = this->place();
  std::byte* const block = scratch_ + block_at_;
  bool moved = false;
  while (received_ < to_receive_) {
    const std::size_t done_bytes = received_ - header;
    const std::size_t in_block = sums ? done_bytes % block_bytes : 0;
    const std::size_t rest = to_receive_ - received_;
    std::byte* const next = sums ? block + in_block : place + done_bytes;
    const std::size_t most = sums ? std::min(block_bytes - in_block, rest) : rest;
    const std::size_t count = transport_.receive(step_.from, {next, most});
    if (count == 0) break;
    received_ += count;
    bytes_moved_ += count;
    moved = true;
    if (sums && count == most)  // the block is whole
      add(place + (done_bytes - in_block), block, in_block + count);
  }
  return moved;
}

void Executor::add(std::byte* target, const std::byte* other, std::size_t bytes) const {
  const std::array<const std::byte*, 2> both{target, other};
  kernels::tree_reduce(collective_.header.dtype, both, std::span(&target, 1),
                       static_cast<std::int64_t>(bytes / element_));
}

void Executor::act() {
  const Range own = collective_.plan.part(collective_.plan.rank);
  switch (step_.action) {
    case Step::Action::none: break;
    case Step::Action::copy_in:
      return copy_bytes(at(own.begin), collective_.part, bytes(own.size()));
    case Step::Action::copy_out:
      return copy_bytes(collective_.part, at(own.begin), bytes(own.size()));
    case Step::Action::fold_slots: return fold_slots();
    case Step::Action::fold_rest: return fold_rest();
    case Step::Action::reduce_regions: return reduce_regions();
  }
}

void Executor::fold_slots() {
  for (int k = 0; k < step_.sources; ++k)
    sources_[index(k)] = k == step_.mine ? at(step_.fold.begin) : slot(k < step_.mine ? k : k - 1);
  destinations_[0] = at(step_.fold.begin);
  kernels::tree_reduce(collective_.header.dtype, std::span(sources_).first(index(step_.sources)),
                       std::span(destinations_).first(1), step_.fold.size());
}

void Executor::fold_rest() {
  for (int k = 0; k < step_.sources; ++k) sources_[index(k)] = slot(k);
  destinations_[0] = slot(0);
  const auto one = std::span(destinations_).first(1);
  kernels::tree_reduce(collective_.header.dtype, std::span(sources_).first(index(step_.sources)),
                       one, step_.fold.size());
  sources_[0] = destinations_[0] = at(step_.fold.begin);
  sources_[1] = slot(0);
  kernels::tree_reduce(collective_.header.dtype, std::span(sources_).first(2), one,
                       step_.fold.size());
}

void Executor::reduce_regions() {
  const Plan& plan = collective_.plan;
  const Range own = plan.part(plan.rank);
  for (int r = 0; r < plan.world; ++r) {
    const auto k = static_cast<std::size_t>(r);
    destinations_[k] = collective_.region->base[k] + collective_.header.offset + bytes(own.begin);
    sources_[k] = destinations_[k];
  }
  kernels::tree_reduce(collective_.header.dtype, sources_, destinations_, own.size());
  bytes_moved_ += 2 * static_cast<std::size_t>(plan.world - 1) * bytes(own.size());
}

std::byte* Executor::slot(int number) const {
  return scratch_ + static_cast<std::size_t>(number) * slot_bytes_;
}

}  // namespace lockstep::dist
