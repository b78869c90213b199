// What the machine can do, in the same run: the fewest steps an all-reduce can consist of, without
// anything that makes it a library (no queue, no headers, no timeouts, no errors).

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "lockstep/core/compiler.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/dist/rendezvous/socket.h"
#include "lockstep/dist/transport/backoff.h"
#include "lockstep/dist/transport/regions.h"
#include "lockstep/dist/transport/tcp/checked_stream.h"
#include "rank.h"

namespace bench {
namespace {

using lockstep::check;
using lockstep::Error;
using lockstep::dist::Descriptor;

// ---- shared memory: every rank's elements lie in one mapping, and each rank overwrites its share
// of all of them with the sums ----

class SharedMemory final : public Engine {
 public:
  // Before the ranks are forked.
  SharedMemory(int ranks, std::int64_t capacity)
      : ranks_(ranks),
        capacity_(capacity),
        apart_(lockstep::dist::parts_apart(static_cast<std::size_t>(capacity) * 4, ranks) / 4),
        spins_(ranks <= lockstep::dist::available_cores()) {
    const std::size_t bytes = sizeof(Meeting) + static_cast<std::size_t>(ranks) * apart_ * 4;
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check<Error>(memory != MAP_FAILED, "no {} bytes of shared memory", bytes);
    meeting_ = new (memory) Meeting{};
    elements_ = reinterpret_cast<float*>(meeting_ + 1);
  }
  void be(int rank) { rank_ = rank; }

  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  void put(std::int64_t begin, std::span<const float> values) override {
    store(memory(), begin, values);
  }
  void get(std::int64_t begin, std::span<float> values) override { load(memory(), begin, values); }
  void barrier() override;
  void all_reduce(std::int64_t count) override {
    barrier();
    reduce(count * rank_ / ranks_, count * (rank_ + 1) / ranks_);
    barrier();
  }

 private:
  struct Meeting {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<unsigned> generation{0};
  };
  float* of(int rank) const { return elements_ + static_cast<std::size_t>(rank) * apart_; }
  std::span<float> memory() const { return {of(rank_), static_cast<std::size_t>(capacity_)}; }
  void reduce(std::int64_t begin, std::int64_t end);

  int ranks_;
  std::int64_t capacity_;
  std::size_t apart_;  // a rank's elements from those of the next, as in our regions
  bool spins_;         // there is a core for every rank
  int rank_ = 0;
  Meeting* meeting_;
  float* elements_;
};

void SharedMemory::barrier() {
  const unsigned generation = meeting_->generation.load();
  if (meeting_->arrived.fetch_add(1) == ranks_ - 1) {
    meeting_->arrived = 0;
    ++meeting_->generation;
    return;
  }
  while (meeting_->generation.load(std::memory_order_acquire) == generation)
    if (!spins_) ::sched_yield();
}

void SharedMemory::reduce(std::int64_t begin, std::int64_t end) {
  if (ranks_ == 2) {
    float *a = of(0), *b = of(1);
    LOCKSTEP_IVDEP
    for (std::int64_t i = begin; i < end; ++i) a[i] = b[i] = a[i] + b[i];
    return;
  }
  constexpr std::int64_t block = 1024;
  std::array<float, block> sum;
  for (; begin < end; begin += block) {
    const std::int64_t here = std::min(block, end - begin);
    std::copy_n(of(0) + begin, here, sum.data());
    for (int r = 1; r < ranks_; ++r)
      for (std::int64_t i = 0; i < here; ++i) sum[static_cast<std::size_t>(i)] += of(r)[begin + i];
    for (int r = 0; r < ranks_; ++r) std::copy_n(sum.data(), here, of(r) + begin);
  }
}

// ---- TCP: a ring of streams, each of which carries what an all-reduce has to send ----

class RawStream : public Engine {
 public:
  // Before the ranks are forked. Streams [2r] -> [2r + 1] lead from rank r to the next.
  RawStream(int ranks, std::int64_t capacity) : ranks_(ranks), capacity_(capacity) {
    for (int r = 0; r < ranks; ++r) connect();
  }
  void be(int rank) {
    rank_ = rank;
    memory_ = lockstep::Tensor::zeros({capacity_});  // the memory that our ranks have over TCP
    next_ = std::move(ends_[static_cast<std::size_t>(2 * rank)]);
    previous_ = std::move(ends_[static_cast<std::size_t>(2 * ((rank + ranks_ - 1) % ranks_) + 1)]);
    ends_.clear();  // so that a stream ends when the rank at its other end does
  }

  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  bool sums() const override { return false; }
  void put(std::int64_t begin, std::span<const float> values) override {
    store(memory_.span<float>(), begin, values);
  }
  void get(std::int64_t begin, std::span<float> values) override {
    load(memory_.span<float>(), begin, values);
  }
  void barrier() override {
    for (int i = 1; i < ranks_; ++i) exchange(1);
  }
  void all_reduce(std::int64_t count) override { exchange(bytes_of(count)); }

 protected:
  // 2 (n-1)/n of the bytes leave every rank, whatever the algorithm (docs/benchmarks.md).
  std::size_t bytes_of(std::int64_t count) const {
    return static_cast<std::size_t>(4 * count) * 2 * static_cast<std::size_t>(ranks_ - 1) /
           static_cast<std::size_t>(ranks_);
  }
  std::span<const std::byte> bytes() const { return {memory_.raw(), memory_.bytes()}; }

 private:
  void connect();
  void exchange(std::size_t bytes);

  int ranks_;
  std::int64_t capacity_;
  int rank_ = 0;
  std::vector<Descriptor> ends_;
  Descriptor next_, previous_;
  lockstep::Tensor memory_;
};

void RawStream::connect() {
  const Descriptor door(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Descriptor from(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  const bool connected = ::bind(door.get(), where, length) == 0 && ::listen(door.get(), 1) == 0 &&
                         ::getsockname(door.get(), where, &length) == 0 &&
                         ::connect(from.get(), where, length) == 0;
  Descriptor to(connected ? ::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC) : -1);
  check<Error>(static_cast<bool>(to), "no connection over the loopback: {}", std::strerror(errno));
  const int on = 1;
  ::setsockopt(from.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ends_.push_back(std::move(from));
  ends_.push_back(std::move(to));
}

// Sends so many bytes to the next rank and receives as many from the one before, at the same time.
void RawStream::exchange(std::size_t bytes) {
  constexpr std::size_t piece = 256 * 1024;
  constexpr int yields = 100;
  std::byte* const memory = memory_.raw();
  const std::size_t room = memory_.bytes();
  const auto rest = [&](std::size_t done) {
    return std::min({piece, bytes - done, room - done % room});
  };
  std::size_t sent = 0, received = 0;
  for (int idle = 0; sent < bytes || received < bytes;) {
    const ssize_t out = sent == bytes ? 0
                                      : ::send(next_.get(), memory + sent % room, rest(sent),
                                               MSG_DONTWAIT | MSG_NOSIGNAL);
    const ssize_t in = received == bytes ? 0
                                         : ::recv(previous_.get(), memory + received % room,
                                                  rest(received), MSG_DONTWAIT);
    check<Error>(received == bytes || in != 0, "rank {}: the one before has gone", rank_);
    if (out > 0) sent += static_cast<std::size_t>(out);
    if (in > 0) received += static_cast<std::size_t>(in);
    idle = out > 0 || in > 0 ? 0 : idle + 1;
    if (idle == 0) continue;
    if (idle < yields) {
      ::sched_yield();
      continue;
    }
    std::array<pollfd, 2> events{{{next_.get(), static_cast<short>(sent < bytes ? POLLOUT : 0), 0},
                                  {previous_.get(), POLLIN, 0}}};
    ::poll(events.data(), received < bytes ? 2 : 1, -1);
  }
}

// ---- The tags of those streams alone: each rank makes those of what it would send, and checks
// those of what it would receive ----

template <class Sealer>
class Tags final : public RawStream {
 public:
  Tags(int ranks, std::int64_t capacity, Sealer sealer)
      : RawStream(ranks, capacity), sealer_(std::move(sealer)) {}

  void all_reduce(std::int64_t count) override {
    constexpr std::size_t most = lockstep::dist::CheckedStream::most_bytes, head = 48;
    for (std::size_t rest = bytes_of(count), here = 0; rest > 0; rest -= here) {
      here = std::min({rest, most, bytes().size()});
      for (const std::size_t size : {std::min(here, head), here}) {
        const lockstep::dist::Tag made = sealer_.seal(keys_.next(), bytes().first(size));
        const lockstep::dist::Tag right = sealer_.seal(keys_.next(), bytes().first(size));
        differ_ += lockstep::dist::same(made, right) ? 0 : 1;
      }
    }
  }

 private:
  Sealer sealer_;
  lockstep::dist::KeyStream keys_;
  std::uint64_t differ_ = 0;  // so that tags are used
};

// ---- ranks as children of this process, which is rank 0 ----

template <class E>
int run_ranks(E engine, const Place& place, std::string_view name) {
  int rank = 0;
  std::vector<pid_t> others;
  const pid_t first = ::getpid();
  for (int r = 1; r < place.ranks && rank == 0; ++r) {
    const pid_t child = ::fork();
    check<Error>(child >= 0, "cannot start a process: {}", std::strerror(errno));
    if (child > 0) {
      others.push_back(child);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != first) ::_exit(1);
    rank = r;
  }
  engine.be(rank);
  serve(engine, name, place.folder);
  if (rank > 0) return 0;
  for (const pid_t child : others) ::waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace

int run_bound(const Place& place) {
  if (place.comm == "tags")
    return run_ranks(
        Tags(place.ranks, place.capacity, lockstep::dist::FrameSealer(lockstep::dist::KeyStream())),
        place, "tags alone");
  if (place.comm == "poly1305")
    return run_ranks(Tags(place.ranks, place.capacity, lockstep::dist::Sealer()), place,
                     "tags by OpenSSL's Poly1305");
  if (place.transport == "tcp")
    return run_ranks(RawStream(place.ranks, place.capacity), place, "bound: raw stream");
  return run_ranks(SharedMemory(place.ranks, place.capacity), place, "bound: shared memory");
}

}  // namespace bench
