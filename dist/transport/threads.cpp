#include "lockstep/dist/transport/threads.h"

#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>

#include "lockstep/dist/transport/backoff.h"
#include "lockstep/dist/transport/byte_ring.h"

namespace lockstep::dist {

namespace {

// What all ranks share. Allocation is rare, so it takes a mutex; streams and flags do not.
class Hub {
 public:
  Hub(int ranks, ThreadsOptions given)
      : size(ranks),
        options(given),
        left(index(ranks)),
        streams_(index(ranks) * (index(ranks) - 1)) {
    for (auto& stream : streams_) {
      stream.reset(static_cast<std::byte*>(
          ::operator new(ByteRing::bytes_needed(options.stream_bytes), std::align_val_t(64))));
      ByteRing::format(stream.get());
    }
  }

  ByteRing stream(int from, int to) const {
    return ByteRing(streams_[stream_number(index(size), from, to)].get(), options.stream_bytes);
  }

  // Throws the reason if somebody gave up.
  void check_aborted() {
    if (!aborted_.load(std::memory_order_acquire)) [[likely]]
      return;
    const std::lock_guard lock(mutex_);
    throw PeerError(reason_);
  }

  void abort(std::string_view reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return;
    try {
      reason_ = reason;
    } catch (...) {  // no memory for the reason: the others learn that it happened, if not why
    }
    aborted_.store(true, std::memory_order_release);
  }

  // One round of allocate(): the last rank to come makes the region for all.
  struct Round {
    std::size_t bytes = 0;
    int first_rank = 0;
    int arrived = 0;
    std::vector<bool> here;  // by rank
    SharedRegion region;
  };

  // A rank arrives in its round; the number of a rank's round is that of its call.
  std::shared_ptr<Round> arrive(std::size_t number, int rank, std::size_t bytes);
  bool complete(const Round& round) {
    const std::lock_guard lock(mutex_);
    return round.arrived == size;
  }
  std::vector<int> missing(const Round& round) {
    const std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank)
      if (!round.here[index(rank)]) ranks.push_back(rank);
    return ranks;
  }

  const int size;
  const ThreadsOptions options;
  std::vector<std::atomic<bool>> left;  // by rank: its transport is gone

 private:
  struct Release {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t(64)); }
  };
  std::vector<std::unique_ptr<std::byte, Release>> streams_;  // by stream_number()
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;  // guards what follows
  std::string reason_;
  std::vector<std::shared_ptr<Round>> rounds_;
};

// Zeroed pages for all ranks, which live as long as the keeper.
SharedRegion make_region(int size, std::size_t bytes) {
  const std::size_t stride = whole_pages(bytes);
  const std::size_t total = stride * index(size);
  void* const memory =
      mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check<CommError>(memory != MAP_FAILED, "no memory for a region of {} x {} bytes: {}", size, bytes,
                   std::strerror(errno));
  SharedRegion region;
  region.bytes = bytes;
  region.keeper = std::shared_ptr<void>(memory, [total](void* m) { munmap(m, total); });
  for (int r = 0; r < size; ++r) {
    region.base.push_back(static_cast<std::byte*>(memory) + index(r) * stride);
  }
  return region;
}

std::shared_ptr<Hub::Round> Hub::arrive(std::size_t number, int rank, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (rounds_.size() == number) {
    rounds_.push_back(std::make_shared<Round>());
    rounds_.back()->bytes = bytes;
    rounds_.back()->first_rank = rank;
    rounds_.back()->here.resize(index(size));
  }
  const std::shared_ptr<Round> round = rounds_[number];
  check<CommError>(round->bytes == bytes, "rank {} asks for {} bytes, rank {} for {}", rank, bytes,
                   round->first_rank, round->bytes);
  if (round->arrived + 1 == size) {
    round->region = make_region(size, bytes);
    rounds_[number].reset();  // from here on the ranks hold it
  }
  ++round->arrived;
  round->here[index(rank)] = true;
  return round;
}

class ThreadsTransport final : public Transport {
 public:
  ThreadsTransport(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), backoff_(hub_->size) {
    for (int peer = 0; peer < hub_->size; ++peer) {
      out_.push_back(peer == rank ? ByteRing() : hub_->stream(rank, peer));
      in_.push_back(peer == rank ? ByteRing() : hub_->stream(peer, rank));
    }
  }
  ~ThreadsTransport() override { hub_->left[index(rank_)].store(true, std::memory_order_release); }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }
  std::string_view name() const override { return "threads"; }
  bool has_shared_memory() const override { return true; }

  std::size_t send(int peer, std::span<const std::byte> bytes) override {
    hub_->check_aborted();
    if (has_left(peer)) fail_without(peer);
    return out_[index(peer)].write(bytes);
  }

  std::size_t receive(int peer, std::span<std::byte> bytes) override {
    hub_->check_aborted();
    ByteRing& stream = in_[index(peer)];
    std::size_t count = stream.read(bytes);
    if (count == 0 && !bytes.empty() && has_left(peer)) {
      count = stream.read(bytes);  // it may have sent and left between the two looks
      if (count == 0) fail_without(peer);
    }
    return count;
  }

  SharedRegion allocate(std::size_t bytes) override {
    const auto round = hub_->arrive(allocations_++, rank_, bytes);
    const Seconds since = now();
    for (unsigned k = 0; !hub_->complete(*round); ++k) {
      for (int peer = 0; peer < size(); ++peer)
        if (has_left(peer) && !hub_->complete(*round)) fail_without(peer);
      if (now() - since >= hub_->options.join_timeout)
        fail<CommError>("timed out after {:g} s: {} where {} bytes are to be allocated",
                        hub_->options.join_timeout.count(),
                        describe_ranks(hub_->missing(*round), "missing"), bytes);
      relax(k);
    }
    return round->region;
  }

  void relax(unsigned round) override {
    hub_->check_aborted();
    backoff_.relax(round);
  }
  bool spins(unsigned round) const override { return backoff_.spins(round); }

  Seconds now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }

  void abort(std::string_view reason) noexcept override { hub_->abort(reason); }

 private:
  // A rank that gives up says why and leaves: between two looks it may have done both.
  [[noreturn]] void fail_without(int peer) {
    hub_->check_aborted();
    fail<PeerError>("rank {} left", peer);
  }
  bool has_left(int peer) const { return hub_->left[index(peer)].load(std::memory_order_acquire); }

  std::shared_ptr<Hub> hub_;
  int rank_;
  Backoff backoff_;
  std::vector<ByteRing> out_, in_;  // by peer
  std::size_t allocations_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> threads_transports(int size, ThreadsOptions options) {
  check<UsageError>(size >= 1, "[threads] a world has at least 1 rank, got {}", size);
  check<UsageError>(std::has_single_bit(options.stream_bytes),
                    "[threads] stream_bytes is a power of two, got {}", options.stream_bytes);
  options.stream_bytes = std::min(options.stream_bytes, stream_capacity(index(size)));
  const auto hub = std::make_shared<Hub>(size, options);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_unique<ThreadsTransport>(hub, rank));
  }
  return transports;
}

}  // namespace lockstep::dist
