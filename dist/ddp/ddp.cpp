#include "lockstep/dist/ddp/ddp.h"

#include <algorithm>

namespace lockstep::dist {
namespace {

// A line per parameter ("parameter '0.weight' (128, 64) f32"), per buffer, and per option that must
// be the same on all ranks.
std::string manifest(const std::vector<Parameter>& parameters, const std::vector<Buffer>& buffers,
                     const DdpOptions& options) {
  std::string text;
  const auto describe = [](const Tensor& tensor) {
    const Device::Kind kind = tensor.device().kind;  // each rank has its own GPU of that kind
    return fmt::format(
        "{} {}{}", tensor.shape(), tensor.dtype(),
        kind == Device::Kind::cpu ? "" : fmt::format(" on {}", Device::name_of(kind)));
  };
  for (const Parameter& parameter : parameters)
    text += fmt::format("parameter '{}' {}{}\n", parameter.name(), describe(parameter.value()),
                        parameter.requires_grad() ? "" : " frozen");
  for (const Buffer& buffer : buffers)
    text += fmt::format("buffer '{}' {}\n", buffer.name, describe(buffer.value));
  return text + to_text(options);
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(std::vector<Parameter> parameters,
                                                 std::vector<Buffer> buffers, const World& world,
                                                 const DdpOptions& options)
    : DistributedDataParallel(std::move(parameters), std::move(buffers), world.communicator(),
                              options) {}

DistributedDataParallel::DistributedDataParallel(std::vector<Parameter> parameters,
                                                 std::vector<Buffer> buffers,
                                                 Communicator& communicator,
                                                 const DdpOptions& options)
    : communicator_(communicator), needs_(communicator.membership().needed) {
  check_each_once("DistributedDataParallel", parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    check<UsageError>(!parameters[i].name().empty(),
                      "[DistributedDataParallel] parameter {} has no name (its shape is {}): ask "
                      "the module for its "
                      "parameters(), or give Parameter a name",
                      i, parameters[i].value().shape());
  (void)caps_of(options);  // refuses what makes no sense
  if (const auto& survival = communicator.membership().survival)
    check<StateError>(survival->shared || !survival->in_body,
                      "[survive] nn::Checkpoint::share(world, step) comes before "
                      "DistributedDataParallel: rank 0 may be one that has joined, and its "
                      "parameters the wrong ones");
  check_same(communicator, "DistributedDataParallel", manifest(parameters, buffers, options));

  std::vector<Buffer> rank0s;
  for (const Parameter& parameter : parameters)
    rank0s.push_back({parameter.name(), parameter.value()});
  rank0s.insert(rank0s.end(), buffers.begin(), buffers.end());
  broadcast(communicator, rank0s, 0);

  std::vector<Parameter> frozen = parameters;
  std::erase_if(parameters, [](const Parameter& p) { return !p.requires_grad(); });
  std::erase_if(frozen, [](const Parameter& p) { return p.requires_grad(); });
  if (communicator.size() > 1)
    for (const Parameter& parameter : frozen) parameter.set_replicated();
  const auto all = std::make_shared<const std::vector<Buffer>>(std::move(buffers));
  buffers_ = std::make_unique<BufferSync>(all, communicator, options.buffers);
  averaged_buffers_ = std::make_unique<BufferSync>(all, communicator, BufferMode::average);
  if (options.nonfinite == NonFinite::skip) buffers_->keep();
  reducer_ = std::make_unique<Reducer>(
      parameters, communicator, options,
      ReducerExtras{.frozen = std::move(frozen), .guards = {buffers_.get()}});
}

// Who has joined is known from the last step's messages. The first call is before this rank has
// told the others: they count on it for their next step, if only to learn that no rank has data
// left.
bool DistributedDataParallel::join() {
  if (buckets().all().empty()) return false;  // there is nothing to take part in
  reducer().settle();
  const bool more = !joined_ || !last_step().all_joined;
  joined_ = more;
  reducer().set_joined(more);
  return more;
}

void DistributedDataParallel::save_on_rank0(const std::function<void()>& save,
                                            std::optional<Seconds> timeout) {
  check_replicas();
  on_rank0(communicator(), save, timeout);
}

void DistributedDataParallel::average_parameters() {
  reducer().average_parameters();
  averaged_buffers_->synchronize(0);
}

}  // namespace lockstep::dist
