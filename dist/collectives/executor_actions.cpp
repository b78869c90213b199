// How a message begins, where its elements go and what becomes of them, and what a step does after
// its messages. Second reading: the ring's steps only add up.

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/dist/collectives/executor.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {

void Executor::pack() {
  std::memcpy(outgoing_.data(), &collective_.header, header_bytes);
  if (const std::size_t payload = head(to_send_) - header_bytes; payload > 0)
    std::memcpy(outgoing_.data() + header_bytes, at(step_.send.begin), payload);
}

std::span<std::byte> Executor::room() const {
  const std::size_t next = std::max(received_, head(to_receive_)), rest = to_receive_ - next;
  if (rest == 0) return {};
  if (step_.into != Step::Into::sum) return {place() + (next - header()), rest};
  const std::size_t in_block = (next - header()) % block_bytes;
  return {block_ + in_block, std::min(block_bytes - in_block, rest)};
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

void Executor::act() {
  const Range own = collective_.input.part(collective_.input.rank);
  const std::size_t size = bytes(own.size());
  switch (step_.action) {
    case Step::Action::none: return;
    case Step::Action::copy_in:
      if (size > 0 && collective_.region) return copy_into_regions(own);
      if (size > 0) std::memmove(at(own.begin), collective_.part, size);
      return;
    case Step::Action::copy_out:
      if (size > 0) std::memmove(collective_.part, at(own.begin), size);
      return;
    case Step::Action::reduce_slots: return reduce_slots();
    case Step::Action::add_slots: return add_slots();
    case Step::Action::reduce_regions: return reduce_regions();
  }
}

void Executor::reduce_slots() {
  std::byte* const target = at(step_.reduced.begin);
  for (int k = 0; k < step_.sources; ++k)
    sources_[index(k)] = k == step_.mine ? target : slot(k < step_.mine ? k : k - 1);
  kernels::tree_reduce(collective_.header.dtype, std::span(sources_).first(index(step_.sources)),
                       std::span(&target, 1), step_.reduced.size());
}

void Executor::add_slots() {
  std::byte* const sum = slot(0);
  for (int k = 0; k < step_.sources; ++k) sources_[index(k)] = slot(k);
  kernels::tree_reduce(collective_.header.dtype, std::span(sources_).first(index(step_.sources)),
                       std::span(&sum, 1), step_.reduced.size());
  add(at(step_.reduced.begin), sum, bytes(step_.reduced.size()));
}

void Executor::copy_into_regions(Range own) {
  for (std::byte* const base : collective_.region->base)
    std::memmove(base + collective_.header.offset + bytes(own.begin), collective_.part,
                 bytes(own.size()));
  bytes_moved_ += index(collective_.input.world - 1) * bytes(own.size());
}

void Executor::reduce_regions() {
  const PlanInput& input = collective_.input;
  const Range own = input.part(input.rank);
  for (std::size_t r = 0; r < index(input.world); ++r)
    sources_[r] = destinations_[r] =
        collective_.region->base[r] + collective_.header.offset + bytes(own.begin);
  kernels::tree_reduce(collective_.header.dtype, sources_, destinations_, own.size());
  bytes_moved_ += 2 * index(input.world - 1) * bytes(own.size());
}

}  // namespace lockstep::dist
