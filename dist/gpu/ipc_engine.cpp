// Collectives by kernels that read and write the peers' memory, on GPUs of one machine. Several
// ranks may share a GPU.
//
// Every rank owns regions (memory of cudaMalloc) and flags, a 32-bit value for each peer and
// purpose. The peers have mapped both:
//
//     signal(q, f):  flag f of this rank at q := 1          a stream's write, after all before it
//     await(q, f):   until flag f of q here is 1; := 0      a stream's wait: no kernel spins
//
// No kernel spins: a kernel that waited for a peer on the same GPU could keep the very kernel from
// running that it waits for. As a flag goes back to 0 each time, the same operations work again
// when a recorded step is replayed. No flag is set twice before it has been awaited: a rank that
// uses it again has since met all ranks by other flags, which they signalled after they awaited
// this one.
//
// MEETING. Signal all, await all: streams go on when all of them are here. Then
//
//     all_reduce, two-shot   meet; reduce the own part of all regions into all, in tree order; meet
//     reduce_scatter         meet; reduce the own part of all regions into the output; meet
//     all_gather             meet; copy the input into the own part of all regions; meet
//     broadcast              meet; copy the root's region; meet
//
// RING. The steps of dist/collectives/plan/ring.cpp: "send" signals that the part may be read,
// "receive" awaits that, then adds the left neighbour's part to one's own, or copies it. A part is
// written again only with what has gone all round the ring, through every rank that read it. Only
// the last parts need an acknowledgement, to the left neighbour.
//
// A tensor outside the regions is copied to a region and back.

#include <algorithm>

#include "lockstep/core/cuda/check.h"
#include "lockstep/dist/collectives/plan/plan.h"
#include "lockstep/dist/gpu/device_engine.h"
#include "lockstep/dist/gpu/flags.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {
namespace {

using cuda::call;

// What flags are for.
constexpr int staging = 0, before = 1, after = 2, acknowledge = 3, first_step = 4;

void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && to != from)
    call("ipc", "cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

class IpcEngine final : public DeviceEngine {
 public:
  IpcEngine(Algorithm algorithm, Device device, HostCommunicator& host)
      : host_(host),
        device_(device),
        ring_(algorithm == Algorithm::ring),
        rank_(host.rank()),
        size_(host.size()),
        flags_(first_step + 2 * size_, device, host),
        sources_(index(size_)),
        targets_(index(size_)) {}

  std::string_view algorithm() const override {
    return ring_ ? "ring, by ipc" : "two-shot, by ipc";
  }
  Storage allocate(std::size_t bytes) override;
  RegionPlace place_of(const Tensor& buffer) const override { return regions_.place_of(buffer); }
  void enqueue(const CollectiveCall& collective, const Stream& stream) override;
  void abort(const Stream& stream) noexcept override {
    flags_.release(static_cast<cudaStream_t>(stream.native()), Seconds(5));
  }

 private:
  /// Where a collective's buffer lies on every rank.
  struct Place {
    const SharedRegion* memory;
    std::size_t offset;
    std::byte* at(int rank) const { return memory->base[index(rank)] + offset; }
  };
  Place find(const Tensor& buffer);
  void work(const CollectiveCall& collective, const Place& place, cudaStream_t stream);
  void ring(const CollectiveCall& collective, const Place& place, cudaStream_t stream);

  HostCommunicator& host_;
  Device device_;
  bool ring_;
  int rank_, size_;
  Flags flags_;
  Regions regions_;
  std::vector<std::shared_ptr<void>> mapped_;  // of regions_, and perhaps of some that have ended
  std::vector<SharedRegion> staging_;          // the last one, which is the largest, is used
  Plan plan_;
  // The own part on every rank, or what a step of the ring works on.
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

Storage IpcEngine::allocate(std::size_t bytes) {
  // To unmap may wait for the GPU, and so for ranks that wait for this one: not where a tensor
  // ends, but here, where all of them are.
  std::erase_if(mapped_, [](const auto& mapping) { return mapping.use_count() == 1; });
  SharedRegion region = share_device_memory(bytes, device_, host_);
  mapped_.push_back(region.keeper);
  return regions_.add(std::move(region), rank_, device_);
}

// The ranks have compared headers: all buffers lie at the same place, or none lies in a region.
IpcEngine::Place IpcEngine::find(const Tensor& buffer) {
  const RegionPlace place = place_of(buffer);
  if (place.region != RegionPlace::none) return {&regions_.at(place), place.offset};
  if (staging_.empty() || staging_.back().bytes < buffer.bytes()) {
    check_not_recording(buffer.bytes());
    staging_.push_back(
        share_device_memory(std::max<std::size_t>(buffer.bytes(), 1), device_, host_));
  }
  return {&staging_.back(), 0};
}

void IpcEngine::enqueue(const CollectiveCall& collective, const Stream& stream) {
  const auto queue = static_cast<cudaStream_t>(stream.native());
  const Place place = find(collective.buffer);
  std::byte* const mine = place.at(rank_);
  const bool staged = mine != collective.buffer.raw();
  // The peers may still read what the last call left in the staging area.
  if (staged) flags_.meet(staging, queue);
  if (staged && collective.operation != Operation::all_gather)
    copy(mine, collective.buffer.raw(), collective.buffer.bytes(), queue);
  work(collective, place, queue);
  if (staged && collective.operation != Operation::reduce_scatter)
    copy(collective.buffer.raw(), mine, collective.buffer.bytes(), queue);
}

void IpcEngine::work(const CollectiveCall& collective, const Place& place, cudaStream_t stream) {
  const auto& [operation, buffer, part, root] = collective;
  const DType dtype = buffer.dtype();
  if (operation == Operation::all_reduce && ring_ && !adds_16_bit(operation, dtype))
    return ring(collective, place, stream);
  const Range own = partition(buffer.numel(), size_, rank_);
  const std::size_t begin = static_cast<std::size_t>(own.begin) * size_of(dtype);
  for (int r = 0; r < size_; ++r) sources_[index(r)] = targets_[index(r)] = place.at(r) + begin;
  flags_.meet(before, stream);
  switch (operation) {
    case Operation::all_reduce:
      kernels::tree_reduce(dtype, sources_, targets_, own.size(), device_);
      break;
    case Operation::reduce_scatter:
      targets_[0] = part.raw();
      kernels::tree_reduce(dtype, sources_, std::span(targets_).first(1), own.size(), device_);
      break;
    case Operation::all_gather:
      for (int r = 0; r < size_; ++r)
        copy(targets_[index((rank_ + r) % size_)], part.raw(), part.bytes(), stream);
      break;
    case Operation::broadcast: copy(place.at(rank_), place.at(root), buffer.bytes(), stream); break;
    case Operation::barrier: break;
  }
  flags_.meet(after, stream);
}

void IpcEngine::ring(const CollectiveCall& collective, const Place& place, cudaStream_t stream) {
  const DType dtype = collective.buffer.dtype();
  int flag = first_step;
  make_plan({Operation::all_reduce, Algorithm::ring, rank_, size_, collective.buffer.numel()},
            plan_);
  for (const Step& step : plan_) {
    flags_.signal(step.to, flag);
    flags_.await(step.from, flag++);
    flags_.run(stream);
    const std::size_t begin = static_cast<std::size_t>(step.receive.begin) * size_of(dtype);
    std::byte* const mine = place.at(rank_) + begin;
    const std::byte* const theirs = place.at(step.from) + begin;
    if (step.into == Step::Into::sum) {
      sources_[0] = targets_[0] = mine;
      sources_[1] = theirs;
      kernels::tree_reduce(dtype, std::span(sources_).first(2), std::span(targets_).first(1),
                           step.receive.size(), device_);
    } else {
      copy(mine, theirs, static_cast<std::size_t>(step.receive.size()) * size_of(dtype), stream);
    }
  }
  if (size_ == 1) return;
  flags_.signal((rank_ - 1 + size_) % size_, acknowledge);
  flags_.await((rank_ + 1) % size_, acknowledge);
  flags_.run(stream);
}

}  // namespace

std::unique_ptr<DeviceEngine> ipc_engine(Algorithm algorithm, Device device,
                                         HostCommunicator& host) {
  return std::make_unique<IpcEngine>(algorithm, device, host);
}

}  // namespace lockstep::dist
