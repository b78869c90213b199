#include "lockstep/dist/transport/pulse.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <utility>

#include "lockstep/core/system/signals_blocked.h"

namespace lockstep::dist {

Pulse::Pulse(std::shared_ptr<WaitBoard> board, Seconds timeout)
    : board_(std::move(board)), interval_(std::min(timeout, longest_work) / 16) {
  const SignalsBlocked for_the_thread;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // the others wait for as long as in any call
  }
}

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  board_->withdraw();
}

void Pulse::run() {
  std::uint64_t seen = 0;
  const auto end = std::chrono::steady_clock::now() + longest_work;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval_, [&] { return over_; }) &&
         std::chrono::steady_clock::now() < end)
    if (progress_->at_work(seen)) board_->tell(WaitNote::Kind::works, board_->rank(), "");
}

}  // namespace lockstep::dist
