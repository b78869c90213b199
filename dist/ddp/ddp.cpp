#include "lockstep/dist/ddp/ddp.h"

#include <algorithm>
#include <cmath>

namespace lockstep::dist {
namespace {

// By the enumerators' values.
constexpr std::string_view buffer_modes[] = {"broadcast", "average", "off"};
constexpr std::string_view nonfinite_policies[] = {"report", "ignore", "skip", "stop"};

// A line per parameter ("parameter '0.weight' (128, 64) f32"), per buffer, and per option that must
// be the same on all ranks.
std::string manifest(const std::vector<Parameter>& parameters, const std::vector<Buffer>& buffers,
                     const DdpOptions& options) {
  std::string text;
  for (const Parameter& parameter : parameters)
    text += fmt::format("parameter '{}' {} {}{}\n", parameter.name(), parameter.value().shape(),
                        parameter.value().dtype(), parameter.requires_grad() ? "" : " frozen");
  for (const Buffer& buffer : buffers)
    text +=
        fmt::format("buffer '{}' {} {}\n", buffer.name, buffer.value.shape(), buffer.value.dtype());
  return text + fmt::format(
                    "bucket_cap_mb {}\nfirst_bucket_mb {}\nlast_bucket_mb {}\nrebuild_buckets {}\n"
                    "bucket_layout {}\nbuffers {}\nnonfinite {}\nhook {}\n"
                    "deferred {}\ncheck_replicas {}\ndeterministic {}\n",
                    options.bucket_cap_mb, options.first_bucket_mb, options.last_bucket_mb,
                    options.rebuild_buckets, options.bucket_layout,
                    buffer_modes[static_cast<std::size_t>(options.buffers)],
                    nonfinite_policies[static_cast<std::size_t>(options.nonfinite)],
                    options.hook ? options.hook->name() : "none", options.deferred,
                    options.check_replicas, name_of(options.deterministic));
}

std::size_t bytes_of(std::string_view name, double mebibytes) {
  check<UsageError>(std::isfinite(mebibytes) && mebibytes > 0,
                    "[DistributedDataParallel] {} must be positive, got {}", name, mebibytes);
  return static_cast<std::size_t>(std::min(std::max(1.0, mebibytes * (1 << 20)), 0x1p62));
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(std::vector<Parameter> parameters,
                                                 std::vector<Buffer> buffers, const World& world,
                                                 DdpOptions options)
    : DistributedDataParallel(std::move(parameters), std::move(buffers), world.communicator(),
                              std::move(options)) {}

DistributedDataParallel::DistributedDataParallel(std::vector<Parameter> parameters,
                                                 std::vector<Buffer> buffers,
                                                 Communicator& communicator, DdpOptions options)
    : communicator_(communicator), needs_(communicator.membership().needed) {
  check_each_once("DistributedDataParallel", parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    check<UsageError>(!parameters[i].name().empty(),
                      "[DistributedDataParallel] parameter {} has no name (its shape is {}): ask "
                      "the module for its "
                      "parameters(), or give Parameter a name",
                      i, parameters[i].value().shape());
  const BucketCaps caps = {bytes_of("bucket_cap_mb", options.bucket_cap_mb),
                           bytes_of("first_bucket_mb", options.first_bucket_mb),
                           bytes_of("last_bucket_mb", options.last_bucket_mb)};
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
  std::optional<BucketLayout> layout;
  if (!options.bucket_layout.empty())
    layout = layout_from_text(options.bucket_layout, parameters.size());
  const auto all = std::make_shared<const std::vector<Buffer>>(std::move(buffers));
  buffers_ = std::make_unique<BufferSync>(all, communicator, options.buffers);
  averaged_buffers_ = std::make_unique<BufferSync>(all, communicator, BufferMode::average);
  const bool skips = options.nonfinite == NonFinite::skip;
  if (skips) buffers_->keep();
  reducer_ = std::make_unique<Reducer>(
      parameters, communicator,
      ReducerOptions{.caps = caps,
                     .rebuild_buckets = options.rebuild_buckets,
                     .layout = std::move(layout),
                     .nonfinite = options.nonfinite,
                     .deterministic = options.deterministic,
                     .hook = options.hook,
                     .deferred = options.deferred,
                     .check_replicas = options.check_replicas,
                     .frozen = std::move(frozen),
                     .after_sync = [sync = buffers_.get(), skips](StepVerdict verdict, int source) {
                       if (verdict == StepVerdict::skip) return sync->restore();
                       sync->synchronize(source);
                       if (skips) sync->keep();
                     }});
}

// Who has joined is known from the last step's messages. The first call is before this rank has
// told anybody: the others count on it for their next step, if only to learn that nobody has data
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
