#include "lockstep/dist/ddp/buckets/gradient_buckets.h"

#include <algorithm>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/ddp/step_metadata.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {

GradientBuckets::GradientBuckets(const std::vector<Parameter>& parameters,
                                 Communicator& communicator, BucketLayout layout,
                                 std::string suffix)
    : parameters_(parameters),
      communicator_(communicator),
      suffix_(std::move(suffix)),
      sizes_(sizes_of(parameters)),
      bucket_of_(parameters.size()) {
  for (const Parameter& parameter : parameters_) parameter.zero_grad();
  make_arenas();
  lay_out(std::move(layout));
}

GradientBuckets::~GradientBuckets() {
  for (const Parameter& parameter : parameters_) parameter.place_gradient({});
}

std::int64_t GradientBuckets::trailer_elements() const {
  return std::ssize(parameters_) + communicator_.size() * metadata_elements;
}

// The places of any layout say how large the arenas are: every other layout needs as much memory.
void GradientBuckets::make_arenas() {
  const BucketPlaces places = bucket_places(sizes_, {reverse_order(sizes_.size()), {}});
  const std::int64_t trailer = trailer_elements();
  for (const BucketPlaces::Bucket& whole : places.buckets) {
    // Once for all layouts: freeing it would wait for the GPU, and so for ranks that wait for us.
    // Before all ranks meet in allocate(): then a stream of a faster rank may wait for this one.
    if (whole.device != Device{} && !pinned_)
      pinned_ = gpu::allocate_pinned(static_cast<std::size_t>(trailer) * size_of(DType::f64));
    const Tensor wire = communicator_.allocate(whole.numel + trailer, whole.dtype, whole.device);
    const bool reached = wire.device() == whole.device;
    arenas_.push_back(
        {reached ? wire : Tensor::zeros({whole.numel}, whole.dtype, whole.device), wire});
  }
}

GradientBuckets::Arena& GradientBuckets::arena_of(DType dtype, Device device) {
  return *std::ranges::find_if(arenas_, [&](const Arena& arena) {
    return arena.memory.dtype() == dtype && arena.memory.device() == device;
  });
}

void GradientBuckets::lay_out(BucketLayout layout) {
  std::vector<std::pair<GradientState, Tensor>> saved;
  for (const Parameter& parameter : parameters_) {
    const Tensor now = parameter.gradient();
    saved.emplace_back(parameter.gradient_state(), now.defined() ? now.clone() : now);
  }
  layout_ = std::move(layout);
  places_ = bucket_places(sizes_, layout_);
  buckets_.clear();
  for (const Arena& arena : arenas_) {
    arena.memory.fill_zero();  // what becomes padding travels too
    if (arena.wire.storage() != arena.memory.storage()) arena.wire.fill_zero();
  }
  for (const BucketPlaces::Bucket& planned : places_.buckets)
    place(static_cast<int>(buckets_.size()), planned);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [state, contents] = saved[i];
    if (!contents.defined()) continue;
    parameters_[i].gradient_slot().copy_from(contents);
    parameters_[i].set_gradient_state(state);
  }
}

void GradientBuckets::place(int number, const BucketPlaces::Bucket& planned) {
  const Arena& arena = arena_of(planned.dtype, planned.device);
  const std::int64_t begin = planned.begin, end = begin + planned.numel;
  Bucket bucket{.index = number,
                .name = fmt::format("bucket {}{}", number, suffix_),
                .memory = arena.memory.slice(begin, end),
                .wire = arena.wire.slice(begin, end)};
  for (const BucketPlaces::Slot& slot : planned.slots) {
    const auto p = static_cast<std::size_t>(slot.parameter);
    const Tensor place = bucket.memory.slice(slot.offset, slot.offset + sizes_[p].numel);
    parameters_[p].place_gradient(place.view(parameters_[p].value().shape()));
    bucket_of_[p] = buckets_.size();
    bucket.members.push_back(slot.parameter);
    bucket.parameters.push_back(parameters_[p]);
  }
  if (buckets_.size() + 1 == places_.buckets.size()) {
    place_trailer(bucket, arena.wire.slice(end, end + trailer_elements()));
    bucket.wire = arena.wire.slice(begin, end + trailer_elements());
  }
  buckets_.push_back(std::move(bucket));
}

void GradientBuckets::place_trailer(Bucket& bucket, const Tensor& wire) {
  trailer_ = wire;
  trailer_on_host_ = wire.device() == Device{}
                         ? wire
                         : Tensor::over(pinned_, 0, wire.shape(), bucket.wire.dtype());
  used_ = trailer_on_host_.slice(0, std::ssize(parameters_));
  metadata_ = trailer_on_host_.slice(std::ssize(parameters_), trailer_elements());
}

void GradientBuckets::send_trailer() const {
  if (trailer_.device() != Device{}) trailer_.copy_from(trailer_on_host_);
}

void GradientBuckets::fetch_trailer() const {
  if (trailer_.device() != Device{}) trailer_on_host_.copy_from(trailer_);
}

std::size_t GradientBuckets::bytes() const {
  std::size_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.wire.bytes();
  return bytes;
}

std::size_t GradientBuckets::largest() const {
  const auto bytes = [](const Bucket& bucket) { return bucket.wire.bytes(); };
  return buckets_.empty() ? 0 : bytes(*std::ranges::max_element(buckets_, {}, bytes));
}

std::vector<GradientSize> sizes_of(const std::vector<Parameter>& parameters) {
  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters)
    sizes.push_back(
        {parameter.value().numel(), parameter.value().dtype(), parameter.value().device()});
  return sizes;
}

void average_values(GradientBuckets& buckets, Communicator& communicator) {
  for (const Parameter& parameter : buckets.parameters())
    parameter.gradient_slot().copy_from(parameter.value());
  for (GradientBuckets::Bucket& bucket : buckets.all()) {
    copy_to_host(bucket);
    bucket.work = communicator.all_reduce(bucket.wire, "average " + bucket.name);
  }
  for (GradientBuckets::Bucket& bucket : buckets.all()) {
    bucket.work.wait();
    copy_from_host(bucket);
    kernels::scale(1.0 / communicator.size(), bucket.memory, bucket.memory, false);
  }
  for (const Parameter& parameter : buckets.parameters())
    parameter.value().copy_from(parameter.gradient_slot());
}

void copy_to_host(const GradientBuckets::Bucket& bucket) {
  if (bucket.memory.device() != bucket.wire.device())
    bucket.wire.slice(0, bucket.memory.numel()).copy_from(bucket.memory);
}

void copy_from_host(const GradientBuckets::Bucket& bucket) {
  if (bucket.memory.device() != bucket.wire.device())
    bucket.memory.copy_from(bucket.wire.slice(0, bucket.memory.numel()));
}

}  // namespace lockstep::dist
