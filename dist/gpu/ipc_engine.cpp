#include "lockstep/dist/gpu/ipc_engine.h"

#include <algorithm>

#include "lockstep/core/cuda/check.h"
#include "lockstep/dist/gpu/flags.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {
namespace {

using cuda::call;

// What flags are for.
constexpr int staging = 0, before = 1, after = 2, acknowledge = 3, first_step = 4;

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

  EngineKind kind() const override { return EngineKind::ipc; }
  std::string_view algorithm() const override { return ring_ ? "ring, by ipc" : "direct, by ipc"; }
  Storage allocate(std::size_t bytes) override;
  RegionPlace place_of(const Tensor& buffer) const override;
  void enqueue(const DeviceCollective& job, const Stream& stream) override;
  std::string failure() override { return ""; }
  void abort(const Stream& stream) noexcept override {
    flags_.release(static_cast<cudaStream_t>(stream.native()), Seconds(5));
  }

 private:
  /// Where a job's buffer lies on every rank.
  struct Place {
    const PeerMemory* memory;
    std::size_t offset;
    std::byte* at(int rank) const { return memory->base[index(rank)] + offset; }
  };
  Place find(const Tensor& buffer);
  void work(const DeviceCollective& job, const Place& place, cudaStream_t stream);
  void ring(const DeviceCollective& job, const Place& place, cudaStream_t stream);
  void fold_own_part(const DeviceCollective& job, const Place& place);
  void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) const;

  HostCommunicator& host_;
  Device device_;
  bool ring_;
  int rank_, size_;
  Flags flags_;
  std::vector<PeerMemory> regions_;
  std::vector<PeerMemory> staging_;  // the last one, which is the largest, is used
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

Storage IpcEngine::allocate(std::size_t bytes) {
  regions_.push_back(share_device_memory(bytes, device_, host_));
  const PeerMemory& region = regions_.back();
  return Storage::adopt(
      region.base[index(rank_)], bytes, [keeper = region.keeper] {}, device_);
}

RegionPlace IpcEngine::place_of(const Tensor& buffer) const {
  const std::byte* const data = buffer.raw();
  for (std::size_t w = 0; w < regions_.size(); ++w) {
    const std::byte* const base = regions_[w].base[index(rank_)];
    if (data >= base && data + buffer.bytes() <= base + regions_[w].bytes)
      return {static_cast<std::int32_t>(w), static_cast<std::uint64_t>(data - base)};
  }
  return {};
}

// All ranks' buffers lie alike, which the announcement has compared; or in none of the regions.
IpcEngine::Place IpcEngine::find(const Tensor& buffer) {
  const RegionPlace place = place_of(buffer);
  if (place.region >= 0) return {&regions_[static_cast<std::size_t>(place.region)], place.offset};
  if (staging_.empty() || staging_.back().bytes < buffer.bytes())
    staging_.push_back(
        share_device_memory(std::max<std::size_t>(buffer.bytes(), 1), device_, host_));
  return {&staging_.back(), 0};
}

void IpcEngine::enqueue(const DeviceCollective& job, const Stream& stream) {
  const auto queue = static_cast<cudaStream_t>(stream.native());
  const Place place = find(job.buffer);
  std::byte* const mine = place.at(rank_);
  const bool staged = mine != job.buffer.raw();
  // Of a staging area, the peers may still read what the last job left there.
  if (staged) flags_.meet(staging, queue);
  if (staged && job.operation != Operation::all_gather)
    copy(mine, job.buffer.raw(), job.buffer.bytes(), queue);
  work(job, place, queue);
  if (staged && job.operation != Operation::reduce_scatter)
    copy(job.buffer.raw(), mine, job.buffer.bytes(), queue);
}

void IpcEngine::work(const DeviceCollective& job, const Place& place, cudaStream_t stream) {
  const DType dtype = job.buffer.dtype();
  const bool narrow = dtype == DType::f16 || dtype == DType::bf16;  // a ring rounds at every hop
  if (job.operation == Operation::all_reduce && ring_ && !narrow) return ring(job, place, stream);
  const Range own = partition(job.buffer.numel(), size_, rank_);
  const std::size_t element = size_of(dtype);
  const std::size_t begin = static_cast<std::size_t>(own.begin) * element;
  flags_.meet(before, stream);
  switch (job.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter: fold_own_part(job, place); break;
    case Operation::all_gather:
      for (int r = 0; r < size_; ++r)
        copy(place.at((rank_ + r) % size_) + begin, job.part.raw(), job.part.bytes(), stream);
      break;
    case Operation::broadcast:
      copy(place.at(rank_), place.at(job.root), job.buffer.bytes(), stream);
      break;
    case Operation::barrier: break;
  }
  flags_.meet(after, stream);
}

void IpcEngine::fold_own_part(const DeviceCollective& job, const Place& place) {
  const Range own = partition(job.buffer.numel(), size_, rank_);
  const std::size_t begin = static_cast<std::size_t>(own.begin) * size_of(job.buffer.dtype());
  for (int r = 0; r < size_; ++r) sources_[index(r)] = targets_[index(r)] = place.at(r) + begin;
  std::span<std::byte* const> targets = targets_;
  if (job.operation == Operation::reduce_scatter) {
    targets_[0] = job.part.raw();
    targets = targets.first(1);
  }
  kernels::tree_reduce(job.buffer.dtype(), sources_, targets, own.size(), device_);
}

void IpcEngine::ring(const DeviceCollective& job, const Place& place, cudaStream_t stream) {
  const DType dtype = job.buffer.dtype();
  const Plan plan{Operation::all_reduce, Algorithm::ring, rank_, size_, job.buffer.numel()};
  for (int s = 0; s < plan.steps(); ++s) {
    const Step step = plan.step(s);
    flags_.signal(step.to, first_step + s);
    flags_.await(step.from, first_step + s);
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

void IpcEngine::copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) const {
  if (bytes > 0 && to != from)
    call("ipc", "cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

}  // namespace

std::unique_ptr<DeviceEngine> ipc_engine(Algorithm algorithm, Device device,
                                         HostCommunicator& host) {
  return std::make_unique<IpcEngine>(algorithm, device, host);
}

}  // namespace lockstep::dist
