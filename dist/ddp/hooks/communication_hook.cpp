#include "lockstep/dist/ddp/hooks/communication_hook.h"

#include <algorithm>
#include <vector>

#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {
namespace {

/// A bucket is cast into memory that the communicator reaches, summed there (in f32, rounded once:
/// Communicator::all_reduce), and cast back.
class Compress final : public CommunicationHook {
 public:
  explicit Compress(DType dtype) : dtype_(dtype) {
    check<DTypeError>(dtype == DType::f16 || dtype == DType::bf16,
                      "[compress] gradients travel as f16 or bf16, not as {}", dtype);
  }

  std::string name() const override { return fmt::format("compress {}", dtype_); }

  void prepare(std::span<const BucketView> buckets, Communicator& communicator) override {
    if (wire_.empty()) allocate(buckets, communicator);
    places_.clear();
    std::vector<std::int64_t> used(wire_.size());
    for (const BucketView& bucket : buckets) {
      const std::size_t k = arena_of(bucket.memory.device());
      const std::int64_t begin = used[k];
      used[k] += bucket.memory.numel();
      places_.push_back(wire_[k].slice(begin, used[k]));
    }
  }

  Work reduce(const BucketView& bucket, Communicator& communicator) override {
    const Tensor& wire = place(bucket);
    cast(bucket.memory, wire);
    return communicator.all_reduce(wire, bucket.name);
  }

  void complete(const BucketView& bucket, Communicator&) override {
    cast(place(bucket), bucket.memory);
  }

 private:
  const Tensor& place(const BucketView& bucket) const {
    return places_[static_cast<std::size_t>(bucket.index)];
  }

  std::size_t arena_of(Device device) const {
    return static_cast<std::size_t>(std::ranges::find(devices_, device) - devices_.begin());
  }

  // One piece of memory per device: all buckets together are as large in every layout.
  void allocate(std::span<const BucketView> buckets, Communicator& communicator) {
    std::vector<std::int64_t> numel;
    for (const BucketView& bucket : buckets) {
      check<DTypeError>(bucket.memory.dtype() == DType::f32,
                        "[compress] the gradients of {} ('{}', ...) are {}; only f32 can travel "
                        "as {}",
                        bucket.name, bucket.parameters.front().name(), bucket.memory.dtype(),
                        dtype_);
      const std::size_t k = arena_of(bucket.memory.device());
      if (k == devices_.size()) {
        devices_.push_back(bucket.memory.device());
        numel.push_back(0);
      }
      numel[k] += bucket.memory.numel();
    }
    for (std::size_t k = 0; k < devices_.size(); ++k)
      wire_.push_back(communicator.allocate(numel[k], dtype_, devices_[k]));
  }

  // Between two devices half the bytes are copied, too.
  static void cast(const Tensor& from, const Tensor& to) {
    if (from.device() == to.device()) return kernels::cast(from, to);
    if (size_of(from.dtype()) < size_of(to.dtype())) return kernels::cast(from.to(to.device()), to);
    const Tensor narrow = Tensor::empty(to.shape(), to.dtype(), from.device());
    kernels::cast(from, narrow);
    to.copy_from(narrow);
  }

  DType dtype_;
  std::vector<Device> devices_;
  std::vector<Tensor> wire_;    // by device
  std::vector<Tensor> places_;  // by bucket, in wire_
};

}  // namespace

std::shared_ptr<CommunicationHook> compress(DType dtype) {
  return std::make_shared<Compress>(dtype);
}

}  // namespace lockstep::dist
