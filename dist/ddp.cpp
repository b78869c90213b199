#include "lockstep/dist/ddp.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/digest.h"

namespace lockstep::dist {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  return lines;
}

// value := rank 0's, through the host where it lies on a GPU.
void broadcast(Communicator& communicator, const Tensor& value, const std::string& name) {
  const Tensor host = value.to(Device{});
  communicator.broadcast(host, 0, name).wait();
  if (value.device() != host.device()) value.copy_from(host);
}

// "0.weight (128, 64) f32", a line per parameter, then per buffer, then the options that must
// agree.
std::string manifest(const std::vector<Parameter>& parameters, const std::vector<Buffer>& buffers,
                     const DdpOptions& options) {
  std::string text;
  for (const Parameter& parameter : parameters)
    text += fmt::format("parameter '{}' {} {}{}\n", parameter.name(), parameter.value().shape(),
                        parameter.value().dtype(), parameter.requires_grad() ? "" : " frozen");
  for (const Buffer& buffer : buffers)
    text +=
        fmt::format("buffer '{}' {} {}\n", buffer.name, buffer.value.shape(), buffer.value.dtype());
  return text + fmt::format("bucket_cap_mb {}\n", options.bucket_cap_mb);
}

}  // namespace

std::vector<std::string> gather_text(Communicator& communicator, std::string_view text) {
  const auto world = static_cast<std::size_t>(communicator.size());
  const Tensor length = Tensor::scalar(static_cast<double>(text.size()), DType::i64).view({1});
  const Tensor lengths = Tensor::empty({communicator.size()}, DType::i64);
  communicator.all_gather(length, lengths, "text lengths").wait();

  const std::int64_t longest = *std::ranges::max_element(lengths.span<std::int64_t>());
  const Tensor mine = Tensor::zeros({longest}, DType::u8);
  std::ranges::copy(text, mine.data<std::uint8_t>());
  const Tensor all = Tensor::empty({communicator.size(), longest}, DType::u8);
  communicator.all_gather(mine, all, "texts").wait();

  std::vector<std::string> texts;
  for (std::size_t r = 0; r < world; ++r) {
    const auto* begin =
        reinterpret_cast<const char*>(all.raw()) + r * static_cast<std::size_t>(longest);
    texts.emplace_back(begin, static_cast<std::size_t>(lengths.data<std::int64_t>()[r]));
  }
  return texts;
}

void check_same(Communicator& communicator, std::string_view what, std::string_view text) {
  const std::vector<std::string> texts = gather_text(communicator, text);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    const auto ours = lines_of(texts[0]);
    const auto theirs = lines_of(texts[r]);
    std::size_t i = 0;
    while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) ++i;
    // Every rank says what differs: none ends before all have got this far.
    try {
      communicator.barrier("difference found").wait();
    } catch (const PeerError&) {
    }
    fail<StateError>("[{}] rank {} differs from rank 0 at item {}: {} on rank 0, {} on rank {}",
                     what, r, i, i < ours.size() ? ours[i] : "nothing",
                     i < theirs.size() ? theirs[i] : "nothing", r);
  }
}

std::string parameter_digest(const std::vector<Parameter>& parameters) {
  Digest digest;
  for (const Parameter& parameter : parameters) {
    const Tensor value = parameter.value().to(Device{});
    digest.add({value.raw(), value.bytes()});
  }
  return Digest::hex(digest.value());
}

DistributedDataParallel::DistributedDataParallel(std::vector<Parameter> parameters,
                                                 std::vector<Buffer> buffers, const World& world,
                                                 DdpOptions options) {
  check<UsageError>(std::isfinite(options.bucket_cap_mb) && options.bucket_cap_mb > 0,
                    "[DistributedDataParallel] bucket_cap_mb must be positive, got {}",
                    options.bucket_cap_mb);
  Communicator& communicator = world.communicator();
  check_same(communicator, "DistributedDataParallel", manifest(parameters, buffers, options));

  for (const Parameter& parameter : parameters)
    broadcast(communicator, parameter.value(), parameter.name());
  for (const Buffer& buffer : buffers) broadcast(communicator, buffer.value, buffer.name);

  std::erase_if(parameters, [](const Parameter& p) { return !p.requires_grad(); });
  const double cap = std::max(1.0, options.bucket_cap_mb * (1 << 20));
  reducer_ = std::make_unique<Reducer>(std::move(parameters), communicator,
                                       static_cast<std::size_t>(std::min(cap, 0x1p62)));
}

}  // namespace lockstep::dist
