#include "lockstep/dist/ddp/guards/buffer_sync.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "lockstep/core/trace/results.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {
namespace {

bool is_averaged(const Buffer& buffer, BufferMode mode) {
  return mode == BufferMode::average && is_differentiable(buffer.value.dtype());
}

/// Copies buffers into `flat` one after another, or back.
template <class Chosen>
void move_all(std::span<const Buffer> buffers, const Tensor& flat, bool back, Chosen&& chosen) {
  std::byte* at = flat.raw();
  for (const Buffer& buffer : buffers) {
    if (!chosen(buffer)) continue;
    const Tensor host = buffer.value.to(Device{});
    if (back)
      std::memcpy(host.raw(), at, host.bytes());
    else
      std::memcpy(at, host.raw(), host.bytes());
    if (back && buffer.value.device() != Device{}) buffer.value.copy_from(host);
    at += host.bytes();
  }
}

}  // namespace

BufferSync::BufferSync(Buffers buffers, Communicator& communicator, BufferMode mode)
    : buffers_(std::move(buffers)), communicator_(communicator), mode_(mode) {
  if (mode == BufferMode::off) return;
  std::size_t bytes = 0;
  std::map<DType, std::int64_t> averaged;
  for (const Buffer& buffer : *buffers_) {
    if (is_averaged(buffer, mode))
      averaged[buffer.value.dtype()] += buffer.value.numel();
    else
      bytes += buffer.value.bytes();
  }
  packed_ = Tensor::zeros({static_cast<std::int64_t>(bytes)}, DType::u8);
  for (const auto& [dtype, numel] : averaged) averaged_.push_back(Tensor::zeros({numel}, dtype));
}

void BufferSync::begins(bool recorded) {
  if (recorded && makes_equal())
    fail<StateError>(
        "[backward] in a step that is being recorded buffers cannot be made equal, for they travel "
        "through the host, and '{}' is one: BufferMode::off",
        buffers_->front().name);
}

void BufferSync::synchronize(int source) {
  if (makes_equal()) make_equal(source);
  if (!trace::here.watcher) return;
  for (const Buffer& buffer : *buffers_)
    trace::here.watcher->see({.place = trace::Place::buffer,
                              .operation = {},
                              .name = buffer.name,
                              .value = buffer.value,
                              .of_world = mode_ != BufferMode::off});
}

void BufferSync::make_equal(int source) {
  for (const Buffer& buffer : *buffers_)
    check<StateError>(
        buffer.value.numel() == 0 || !buffer.value.storage().unique(),
        "[buffers] the model has another tensor in the place of '{}', which "
        "DistributedDataParallel does not see: write into a buffer (copy_from), do not "
        "assign to it",
        buffer.name);
  if (packed_.numel() > 0) {
    const auto chosen = [&](const Buffer& buffer) { return !is_averaged(buffer, mode_); };
    if (communicator_.rank() == source) move_all(*buffers_, packed_, false, chosen);
    communicator_.broadcast(packed_, source, "buffers").wait();
    if (communicator_.rank() != source) move_all(*buffers_, packed_, true, chosen);
  }
  for (const Tensor& flat : averaged_) {
    const auto chosen = [&](const Buffer& buffer) {
      return is_averaged(buffer, mode_) && buffer.value.dtype() == flat.dtype();
    };
    move_all(*buffers_, flat, false, chosen);
    communicator_.all_reduce(flat, "buffers").wait();
    kernels::scale(1.0 / communicator_.size(), flat, flat, false);
    move_all(*buffers_, flat, true, chosen);
  }
}

void BufferSync::keep() {
  kept_.resize(buffers_->size());
  for (std::size_t i = 0; i < buffers_->size(); ++i) {
    if (kept_[i].defined())
      kept_[i].copy_from((*buffers_)[i].value);
    else
      kept_[i] = (*buffers_)[i].value.clone();
  }
}

void BufferSync::restore() {
  for (std::size_t i = 0; i < kept_.size(); ++i) (*buffers_)[i].value.copy_from(kept_[i]);
}

void BufferSync::ended(StepVerdict verdict, int source) {
  if (verdict == StepVerdict::skip) restore();
  if (verdict != StepVerdict::commit) return;
  synchronize(source);
  if (!kept_.empty()) keep();
}

void broadcast(Communicator& communicator, const std::vector<Buffer>& tensors, int root) {
  constexpr std::size_t most_packed = std::size_t{1} << 20;  // bytes: larger ones travel alone
  for (std::size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    const Buffer& first = tensors[begin];
    std::size_t bytes = first.value.bytes();
    for (end = begin + 1; end < tensors.size(); ++end) {
      const std::size_t more = tensors[end].value.bytes();
      if (bytes + more > most_packed) break;
      bytes += more;
    }
    if (end == begin + 1) {
      const Tensor host = first.value.to(Device{});
      communicator.broadcast(host, root, first.name).wait();
      if (first.value.device() != host.device()) first.value.copy_from(host);
      continue;
    }
    const std::span some(tensors.data() + begin, end - begin);
    const Tensor packed = Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::u8);
    const auto all = [](const Buffer&) { return true; };
    if (communicator.rank() == root) move_all(some, packed, false, all);
    communicator.broadcast(packed, root, fmt::format("{} and {} more", first.name, some.size() - 1))
        .wait();
    if (communicator.rank() != root) move_all(some, packed, true, all);
  }
}

}  // namespace lockstep::dist
