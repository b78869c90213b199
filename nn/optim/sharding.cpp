#include "lockstep/nn/optim/sharding.h"

#include <algorithm>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/collectives/object_collectives.h"

namespace lockstep::optim {
namespace {

constexpr std::int64_t aligned = 16;  // elements: 64 bytes of f32

std::int64_t rounded_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

FlatPlan flat_plan(const std::vector<std::int64_t>& sizes, int ranks) {
  FlatPlan plan;
  for (const std::int64_t size : sizes) {
    plan.begins.push_back(plan.numel);
    plan.numel += rounded_up(size, aligned);
  }
  plan.numel = rounded_up(plan.numel, aligned * ranks);
  return plan;
}

Sharding::Sharding(const std::vector<Parameter>& parameters, dist::Communicator& communicator)
    : parameters_(parameters),
      communicator_(communicator),
      rank_(communicator.rank()),
      ranks_(communicator.size()) {
  for (const Parameter& parameter : parameters_)
    check<StateError>(parameter.value().storage().unique(),
                      "[shard] somebody else holds the elements of {}, and would not see later "
                      "steps: another optimizer, a state_dict, a Tensor of its value, a living "
                      "tape? End that first, or shard before",
                      parameter);
  std::vector<bool> placed(parameters_.size());
  for (std::size_t first = 0; first < parameters_.size(); ++first) {
    if (placed[first]) continue;
    const DType dtype = parameters_[first].value().dtype();
    const Device device = parameters_[first].value().device();
    std::vector<std::size_t> alike;
    std::vector<std::int64_t> sizes;
    for (std::size_t i = first; i < parameters_.size(); ++i) {
      const Tensor& value = parameters_[i].value();
      if (value.dtype() != dtype || value.device() != device) continue;
      placed[i] = true;
      alike.push_back(i);
      sizes.push_back(value.numel());
    }
    const FlatPlan plan = flat_plan(sizes, communicator.size());
    const Tensor wire = communicator.allocate(plan.numel, dtype, device);
    const bool reached = wire.device() == device;
    const Tensor memory = reached ? wire : Tensor::zeros({plan.numel}, dtype, device);
    for (std::size_t k = 0; k < alike.size(); ++k) {
      const Parameter& parameter = parameters_[alike[k]];
      places_[parameter.id()] = {flats_.size(), plan.begins[k]};
      parameter.place_value(
          memory.slice(plan.begins[k], plan.begins[k] + sizes[k]).view(parameter.value().shape()));
    }
    flats_.push_back({memory, wire});
  }
}

Sharding::~Sharding() {
  for (const Parameter& parameter : parameters_) parameter.place_value({});
}

// Of the parameter's elements, counted from its first.
dist::Range Sharding::owned(const Parameter& parameter, int rank) const {
  const Place place = places_.at(parameter.id());
  const dist::Range part = dist::partition(flats_[place.flat].memory.numel(), ranks_, rank);
  const std::int64_t numel = parameter.value().numel();
  const std::int64_t begin = std::clamp<std::int64_t>(part.begin - place.begin, 0, numel);
  return {begin, std::clamp(part.end - place.begin, begin, numel)};
}

Tensor Sharding::own(const Parameter& parameter, const Tensor& of) const {
  const dist::Range range = owned(parameter, rank_);
  return of.view({of.numel()}).slice(range.begin, range.end);
}

dist::Communicator& Sharding::communicator(std::string_view operation) const {
  return communicator_.get(fmt::format("[{}] a sharded optimizer", operation));
}

// What arrives is a write that the step's kernel has told already: a rank steps a part of each
// value, even an empty one, in the memory in which it receives the others.
void Sharding::gather() {
  dist::Communicator& communicator = this->communicator("step");
  for (const auto& [memory, wire] : flats_) {
    const dist::Range part = dist::partition(memory.numel(), ranks_, rank_);
    const Tensor own = wire.slice(part.begin, part.end);
    const bool reached = wire.device() == memory.device();
    check<StateError>(reached || !StepGraph::recording(),
                      "[step] in a step that is being recorded parameters cannot travel through "
                      "the host: take nccl, or transport ipc");
    if (!reached) own.copy_from(memory.slice(part.begin, part.end));
    communicator.all_gather(own, wire, "parameters").wait();
    if (!reached) memory.copy_from(wire);
  }
}

Tensor Sharding::whole(const Parameter& parameter, const Tensor& part) const {
  dist::Communicator& communicator = this->communicator("state_dict");
  const Tensor whole = Tensor::empty({parameter.value().numel()}, part.dtype());
  own(parameter, whole).copy_from(part);
  for (int rank = 0; rank < ranks_; ++rank)
    if (const dist::Range range = owned(parameter, rank); range.size() > 0)
      communicator.broadcast(whole.slice(range.begin, range.end), rank, parameter.name()).wait();
  return whole.view(parameter.value().shape());
}

}  // namespace lockstep::optim
