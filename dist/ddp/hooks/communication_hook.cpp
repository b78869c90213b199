#include "lockstep/dist/ddp/hooks/communication_hook.h"

#include <algorithm>
#include <utility>
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
    if (std::vector<Wire> needed = wires_for(buckets); !std::ranges::equal(needed, wires_, same)) {
      places_.clear();
      wires_ = std::move(needed);  // of another model: a hook may serve one after another
      for (Wire& wire : wires_) wire.memory = communicator.allocate(wire.used, dtype_, wire.device);
    }
    for (Wire& wire : wires_) wire.used = 0;
    places_.clear();
    for (const BucketView& bucket : buckets) {
      Wire& wire = wire_on(wires_, bucket.memory.device());
      const std::int64_t begin = std::exchange(wire.used, wire.used + bucket.memory.numel());
      places_.push_back(wire.memory.slice(begin, wire.used));
    }
  }

  Work reduce(const BucketView& bucket, Communicator& communicator) override {
    const Tensor& wire = places_[index(bucket.index)];
    cast(bucket.memory, wire);
    return communicator.all_reduce(wire, bucket.name);
  }

  void complete(const BucketView& bucket, Communicator&) override {
    cast(places_[index(bucket.index)], bucket.memory);
  }

 private:
  /// The memory of all buckets on one device: as large in every layout.
  struct Wire {
    Device device;
    std::int64_t used = 0;  // elements
    Tensor memory{};
  };
  static bool same(const Wire& a, const Wire& b) {
    return a.device == b.device && a.used == b.used;
  }
  static Wire& wire_on(std::vector<Wire>& wires, Device device) {
    const auto found = std::ranges::find(wires, device, &Wire::device);
    return found != wires.end() ? *found : wires.emplace_back(Wire{device});
  }

  /// What these buckets need, without memory.
  std::vector<Wire> wires_for(std::span<const BucketView> buckets) const {
    std::vector<Wire> wires;
    for (const BucketView& bucket : buckets) {
      check<DTypeError>(bucket.memory.dtype() == DType::f32,
                        "[compress] the gradients of {} ('{}', ...) are {}; only f32 can travel "
                        "as {}",
                        bucket.name, bucket.parameters.front().name(), bucket.memory.dtype(),
                        dtype_);
      wire_on(wires, bucket.memory.device()).used += bucket.memory.numel();
    }
    return wires;
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
  std::vector<Wire> wires_;
  std::vector<Tensor> places_;  // by bucket, in the wires
};

}  // namespace

std::shared_ptr<CommunicationHook> compress(DType dtype) {
  return std::make_shared<Compress>(dtype);
}

Observation CommunicationHook::bind() {
  check<StateError>(bound_.expired(),
                    "[communication_hook] '{}' already serves another DistributedDataParallel: "
                    "make a hook for each",
                    name());
  const Observation token = std::make_shared<char>();
  bound_ = token;
  return token;
}

}  // namespace lockstep::dist
