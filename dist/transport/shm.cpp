#include "lockstep/dist/transport/shm.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "lockstep/dist/transport/backoff.h"
#include "lockstep/dist/transport/byte_ring.h"
#include "lockstep/dist/transport/shared_memory.h"

namespace lockstep::dist {

namespace {

enum class Stage : std::uint32_t { none, writing, written };
enum class PeerState : std::uint32_t { here, left, gone };

/// Zeroed memory is a valid control block: nobody gave up, everybody is here.
struct alignas(64) Control {
  std::atomic<Stage> aborted;
  std::array<char, 1020> reason;
};
struct alignas(64) Presence {
  std::atomic<PeerState> state;
};
static_assert(std::atomic<Stage>::is_always_lock_free);

/// Where things lie in the shared memory.
struct Layout {
  std::size_t ranks;
  std::size_t stream;  // capacity

  std::size_t presence(int rank) const { return sizeof(Control) + sizeof(Presence) * index(rank); }
  std::size_t ring(int from, int to) const {
    return sizeof(Control) + sizeof(Presence) * ranks +
           ByteRing::bytes_needed(stream) * stream_number(ranks, from, to);
  }
  std::size_t bytes() const { return ring(static_cast<int>(ranks), 0); }
};

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(std::shared_ptr<Rendezvous> rendezvous);
  ~ShmTransport() override {
    auto expected = PeerState::here;
    presence(rank_).state.compare_exchange_strong(expected, PeerState::left);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "shm"; }
  bool has_shared_memory() const override { return true; }

  std::size_t send(int peer, std::span<const std::byte> bytes) override;
  std::size_t receive(int peer, std::span<std::byte> bytes) override;
  SharedRegion allocate(std::size_t bytes) override;
  void relax(unsigned round) override;
  bool spins(unsigned round) const override { return backoff_.spins(round); }
  Seconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void abort(std::string_view reason) noexcept override;

 private:
  Control& control() const { return *reinterpret_cast<Control*>(memory_.get()); }
  Presence& presence(int rank) const {
    return *reinterpret_cast<Presence*>(memory_.get() + layout_.presence(rank));
  }
  void check_aborted() const {
    if (control().aborted.load(std::memory_order_acquire) != Stage::none) [[unlikely]]
      throw_reason();
  }
  [[noreturn]] void throw_reason() const;
  PeerState state_of(int peer) const {
    return presence(peer).state.load(std::memory_order_acquire);
  }
  [[noreturn]] void throw_absent(int peer) const;

  std::shared_ptr<Rendezvous> rendezvous_;
  int rank_;
  int size_;
  Layout layout_;
  std::shared_ptr<std::byte> memory_;
  std::vector<ByteRing> out_;  // by peer
  std::vector<ByteRing> in_;
  Backoff backoff_;
  Seconds next_look_{0};
};

ShmTransport::ShmTransport(std::shared_ptr<Rendezvous> rendezvous)
    : rendezvous_(std::move(rendezvous)),
      rank_(rendezvous_->rank()),
      size_(rendezvous_->size()),
      layout_{index(size_), stream_capacity(index(size_))},
      out_(index(size_)),
      in_(index(size_)),
      backoff_(size_) {
  const std::size_t part = (layout_.bytes() + index(size_) - 1) / index(size_);
  memory_ = share_memory(*rendezvous_, "shared memory", part);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    out_[index(peer)] = ByteRing(memory_.get() + layout_.ring(rank_, peer), layout_.stream);
    in_[index(peer)] = ByteRing(memory_.get() + layout_.ring(peer, rank_), layout_.stream);
  }
}

std::size_t ShmTransport::send(int peer, std::span<const std::byte> bytes) {
  check_aborted();
  if (state_of(peer) != PeerState::here) [[unlikely]]
    throw_absent(peer);
  return out_[index(peer)].write(bytes);
}

std::size_t ShmTransport::receive(int peer, std::span<std::byte> bytes) {
  check_aborted();
  ByteRing& ring = in_[index(peer)];
  const std::size_t count = ring.read(bytes);
  if (count > 0 || bytes.empty() || state_of(peer) == PeerState::here) return count;
  const std::size_t last = ring.read(bytes);  // what it wrote between our two looks
  if (last == 0) throw_absent(peer);
  return last;
}

SharedRegion ShmTransport::allocate(std::size_t bytes) {
  check_aborted();
  const std::shared_ptr<std::byte> memory = share_memory(*rendezvous_, "allocate", bytes);
  SharedRegion region{bytes, {}, memory};
  for (int r = 0; r < size_; ++r)
    region.base.push_back(memory.get() + whole_pages(bytes) * index(r));
  return region;
}

void ShmTransport::relax(unsigned round) {
  check_aborted();
  if (!backoff_.relax(round) || now() < next_look_) return;
  next_look_ = now() + std::chrono::milliseconds(2);
  for (int peer = 0; peer < size_; ++peer)  // what it sent could be received since the last look
    if (state_of(peer) == PeerState::gone) throw_absent(peer);
  for (const int peer : rendezvous_->gone()) {
    auto expected = PeerState::here;
    presence(peer).state.compare_exchange_strong(expected, PeerState::gone);
  }
}

void ShmTransport::abort(std::string_view reason) noexcept {
  auto expected = Stage::none;
  if (control().aborted.compare_exchange_strong(expected, Stage::writing)) {
    std::array<char, 1020>& text = control().reason;  // zeroed: it ends with a 0
    std::copy_n(reason.begin(), std::min(reason.size(), text.size() - 1), text.begin());
    control().aborted.store(Stage::written, std::memory_order_release);
  }
  rendezvous_->abort(reason);  // reaches those who wait in allocate()
}

void ShmTransport::throw_reason() const {
  for (int i = 0; i < 1000 && control().aborted.load(std::memory_order_acquire) != Stage::written;
       ++i)
    std::this_thread::yield();  // the writer may have been killed while it wrote: so not for ever
  const std::array<char, 1020>& text = control().reason;
  if (control().aborted.load(std::memory_order_acquire) != Stage::written)
    throw PeerError("a rank gave up");
  throw PeerError(std::string(text.begin(), std::find(text.begin(), text.end(), '\0')));
}

void ShmTransport::throw_absent(int peer) const {
  check_aborted();  // it gave its reason before it left
  fail<PeerError>("rank {} {}", peer, state_of(peer) == PeerState::left ? "has left" : "is gone");
}

}  // namespace

std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous) {
  return std::make_unique<ShmTransport>(std::move(rendezvous));
}

}  // namespace lockstep::dist
