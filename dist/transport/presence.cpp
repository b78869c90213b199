#include "lockstep/dist/transport/presence.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/core/error.h"

namespace lockstep::dist {

void PresenceBoard::set(int rank, Presence state) const {
  Presence expected = Presence::here;
  place(rank).compare_exchange_strong(expected, state);
}

void PresenceBoard::abort(std::string_view reason) const noexcept {
  auto expected = Abort::none;
  if (!shared_->aborted.compare_exchange_strong(expected, Abort::writing)) return;
  const std::size_t length = std::min(reason.size(), shared_->reason.size() - 1);
  std::copy_n(reason.begin(), length, shared_->reason.begin());
  shared_->aborted.store(Abort::written, std::memory_order_release);
}

void PresenceBoard::throw_reason() const {
  // A rank is writing why. It may have been killed meanwhile: do not wait for ever.
  const auto start = std::chrono::steady_clock::now();
  while (shared_->aborted.load(std::memory_order_acquire) != Abort::written) {
    if (std::chrono::steady_clock::now() - start > std::chrono::milliseconds(200))
      throw PeerError("a rank gave up");
    std::this_thread::yield();
  }
  throw PeerError(std::string(shared_->reason.data()));
}

void PresenceBoard::fail_without(int peer) const {
  check_aborted();  // it gave its reason before it left
  throw LostPeer(peer, of(peer) == Presence::left ? Fault::left : Fault::gone);
}

}  // namespace lockstep::dist
