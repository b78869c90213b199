#include "lockstep/dist/ddp/gradient_buckets.h"

#include <algorithm>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {
namespace {

/// A gradient's contents while its memory is cut anew.
struct Saved {
  GradientState state = GradientState::nothing;
  Tensor contents;
};

}  // namespace

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

// The plan for any layout says how large the arenas are: as large as for every other.
void GradientBuckets::make_arenas() {
  const BucketPlan plan = bucket_plan(sizes_, {reverse_order(sizes_.size()), {}});
  const auto control =
      static_cast<std::int64_t>(sizes_.size()) + communicator_.size() * metadata_elements;
  for (const BucketPlan::Bucket& whole : plan.buckets) {
    const Tensor travelling =
        communicator_.allocate(whole.numel + control, whole.dtype, whole.device);
    const Tensor memory = whole.device == travelling.device()
                              ? travelling
                              : Tensor::zeros({whole.numel}, whole.dtype, whole.device);
    arenas_.push_back({memory, travelling});
    // Once for all layouts: to free it would wait for the GPU, and so for ranks that wait for this one.
    if (travelling.device() != Device{} && !pinned_)
      pinned_ = gpu::allocate_pinned(static_cast<std::size_t>(control) * size_of(DType::f64));
  }
}

GradientBuckets::Arena& GradientBuckets::arena_of(DType dtype, Device device) {
  return *std::ranges::find_if(arenas_, [&](const Arena& arena) {
    return arena.memory.dtype() == dtype && arena.memory.device() == device;
  });
}

void GradientBuckets::lay_out(BucketLayout layout) {
  std::vector<Saved> saved;
  for (const Parameter& parameter : parameters_) {
    const Tensor now = parameter.gradient();
    saved.push_back({parameter.gradient_state(), now.defined() ? now.clone() : now});
  }
  layout_ = std::move(layout);
  plan_ = bucket_plan(sizes_, layout_);
  buckets_.clear();
  for (const Arena& arena : arenas_) {
    arena.memory.fill_zero();  // what becomes padding travels, too
    arena.travelling.fill_zero();
  }
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) place(b);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!saved[i].contents.defined()) continue;
    parameters_[i].gradient_slot().copy_from(saved[i].contents);
    parameters_[i].set_gradient_state(saved[i].state);
  }
}

void GradientBuckets::place(std::size_t b) {
  const BucketPlan::Bucket& planned = plan_.buckets[b];
  const Arena& arena = arena_of(planned.dtype, planned.device);
  const std::int64_t begin = planned.begin, end = begin + planned.numel;
  Bucket bucket{.name = fmt::format("bucket {}{}", b, suffix_),
                .memory = arena.memory.slice(begin, end),
                .travelling = arena.travelling.slice(begin, end)};
  for (const BucketPlan::Slot& slot : planned.slots) {
    const auto p = static_cast<std::size_t>(slot.parameter);
    const Tensor place = bucket.memory.slice(slot.offset, slot.offset + sizes_[p].numel);
    parameters_[p].place_gradient(place.view(parameters_[p].value().shape()));
    bucket_of_[p] = b;
    bucket.members.push_back(slot.parameter);
  }
  if (b + 1 == plan_.buckets.size()) {
    const auto parameters = static_cast<std::int64_t>(parameters_.size());
    const std::int64_t notes = parameters + communicator_.size() * metadata_elements;
    notes_ = arena.travelling.slice(end, end + notes);
    const bool on_gpu = notes_.device() != Device{};
    notes_on_host_ = on_gpu ? Tensor::over(pinned_, 0, {notes}, notes_.dtype()) : notes_;
    used_ = notes_on_host_.slice(0, parameters);
    metadata_ = notes_on_host_.slice(parameters, notes);
    bucket.travelling = arena.travelling.slice(begin, end + notes);
  }
  buckets_.push_back(std::move(bucket));
}

void GradientBuckets::send_notes() const {
  if (notes_.device() != Device{}) notes_.copy_from(notes_on_host_);
}

void GradientBuckets::fetch_notes() const {
  if (notes_.device() != Device{}) notes_on_host_.copy_from(notes_);
}

std::size_t GradientBuckets::bytes() const {
  std::size_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.travelling.bytes();
  return bytes;
}

std::vector<GradientSize> sizes_of(const std::vector<Parameter>& parameters) {
  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters)
    sizes.push_back(
        {parameter.value().numel(), parameter.value().dtype(), parameter.value().device()});
  return sizes;
}

void copy_to_host(const GradientBuckets::Bucket& bucket) {
  if (bucket.memory.device() != bucket.travelling.device())
    bucket.travelling.slice(0, bucket.memory.numel()).copy_from(bucket.memory);
}

void copy_from_host(const GradientBuckets::Bucket& bucket) {
  if (bucket.memory.device() != bucket.travelling.device())
    bucket.memory.copy_from(bucket.travelling.slice(0, bucket.memory.numel()));
}

}  // namespace lockstep::dist
