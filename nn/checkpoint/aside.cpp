// A checkpoint that a separate thread writes.

#include <unistd.h>

#include <chrono>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/system/signals_blocked.h"
#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/nn/checkpoint/checkpoint.h"

namespace lockstep::nn {

void Checkpoint::write_aside(std::function<void()> write) {
  const SignalsBlocked for_the_thread;
  std::promise<std::shared_ptr<const Progress>> begun;
  auto of_writer = begun.get_future();
  writing_ = std::async(std::launch::async,
                        [begun = std::move(begun), write = std::move(write)]() mutable {
                          begun.set_value(Progress::of_this_thread());
                          write();
                        });
  of_writer_ = of_writer.get();
}

// Its memory is used again by the next one.
void Checkpoint::take_snapshot(const StateDict& tensors) {
  std::erase_if(snapshot_, [&](const auto& entry) { return !tensors.contains(entry.first); });
  for (const auto& [name, tensor] : tensors) {
    Tensor& copy = snapshot_[name];
    if (!copy.defined() || copy.shape() != tensor.shape() || copy.dtype() != tensor.dtype())
      copy = Tensor::empty(tensor.shape(), tensor.dtype());
    copy.copy_from(tensor);
  }
}

void Checkpoint::wait() {
  if (!std::exchange(pending_, false)) return;
  on_rank0(
      [&] {
        const Progress::Through writer(of_writer_);
        writing_.get();
      },
      pending_timeout_);
}

bool Checkpoint::is_written() const {
  return !writing_.valid() ||
         writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

Checkpoint::~Checkpoint() {
  if (!writing_.valid()) return;
  try {
    writing_.get();
  } catch (const std::exception& error) {  // wait() would have thrown it
    dist::write_all(STDERR_FILENO, fmt::format("error: {}\n", visible(error.what())));
  }
}

}  // namespace lockstep::nn
