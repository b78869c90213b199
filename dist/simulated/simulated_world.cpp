#include "lockstep/dist/simulated/simulated_world.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <queue>
#include <random>
#include <thread>
#include <utility>

namespace lockstep::dist {

namespace {

using Nanoseconds = std::int64_t;

constexpr Nanoseconds call_time = 100;
constexpr Nanoseconds first_jump = 1'000'000;  // of an idle world; doubled while nothing moves
constexpr Nanoseconds longest_jump = 1'000'000'000;
constexpr int nobody = -1;

Nanoseconds nanoseconds(Seconds time) { return static_cast<Nanoseconds>(time.count() * 1e9); }

// Unwinds the thread of a lost rank. Not an std::exception: ordinary code does not catch it.
struct Lost {};

struct Message {
  Nanoseconds arrival;
  std::vector<std::byte> bytes;
  std::size_t taken = 0;
};

struct Channel {
  std::deque<Message> messages;
  std::size_t bytes = 0;
  Nanoseconds last_arrival = 0;
};

struct RankState {
  enum class Doing { running, waiting, stalled, ended };
  Doing doing = Doing::running;
  bool stirred = false;  // something happened to it since it last began to wait
  bool lost = false;
  bool gone = false;  // its transport is destroyed, or it is lost
  Nanoseconds stalled_until = 0;
  std::uint64_t calls = 0;
  std::size_t allocations = 0;
  std::condition_variable turn;
};

// Everything but the baton itself is touched only by the thread that holds the baton.
class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options)
      : options_(options),
        random_(options.seed),
        ranks_(index(options.size)),
        channels_(index(options.size) * index(options.size)) {}

  int size() const { return options_.size; }
  bool shared_memory() const { return options_.shared_memory; }
  Nanoseconds clock() const { return clock_; }
  std::size_t send(int from, int to, std::span<const std::byte> bytes);
  std::size_t receive(int to, int from, std::span<std::byte> bytes);
  void relax(int rank);
  SharedRegion allocate(int rank, std::size_t bytes);
  void abort(int rank, std::string_view reason);
  void leave(int rank);

  SimReport run(const std::function<void(int, std::unique_ptr<Transport>)>& program,
                const std::function<std::unique_ptr<Transport>(int)>& make_transport);

 private:
  RankState& state(int rank) { return ranks_[index(rank)]; }
  Channel& channel(int from, int to) { return channels_[index(from) * ranks_.size() + index(to)]; }
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::size_t some_of(std::size_t most) { return below(2) ? most : 1 + below(most); }
  void record(std::initializer_list<std::uint64_t> what);

  void enter(int rank);
  void strike(int rank);
  void check_aborted() const {
    if (aborted_) throw PeerError(reason_);
  }
  void stir(int rank);
  void stir_all();
  void moved() { jump_ = first_jump; }

  int pick();
  void happen();     // events whose time has come
  void skip_time();  // nobody can run
  void yield(int rank);
  void pass_baton(int to);
  void wait_for_baton(int rank);

  const SimOptions options_;
  std::mt19937_64 random_;
  std::deque<RankState> ranks_;  // a deque: condition variables cannot move
  std::vector<Channel> channels_;
  Nanoseconds clock_ = 0;
  Nanoseconds jump_ = first_jump;
  using Event = std::pair<Nanoseconds, int>;  // something reaches this rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  bool aborted_ = false;
  std::string reason_;
  struct Allocation {
    std::size_t bytes = 0;
    int arrived = 0;
    std::vector<bool> here;  // by rank
    SharedRegion region;
  };
  std::deque<Allocation> allocations_;
  SimReport report_;

  std::mutex mutex_;  // guards the baton
  std::condition_variable all_ended_;
  int holder_ = nobody;
};

void SimWorld::record(std::initializer_list<std::uint64_t> what) {
  for (const std::uint64_t value : what) {  // FNV-1a, by words
    report_.trace = (report_.trace ^ value) * 0x100000001b3u;
  }
}

// ---- the baton ----

void SimWorld::happen() {
  while (!events_.empty() && events_.top().first <= clock_) {
    const int rank = events_.top().second;
    events_.pop();
    stir(rank);
  }
}

void SimWorld::stir(int rank) {
  RankState& it = state(rank);
  it.stirred = true;
  const bool awake = it.doing == RankState::Doing::stalled && clock_ >= it.stalled_until;
  if (it.doing == RankState::Doing::waiting || awake) it.doing = RankState::Doing::running;
}

void SimWorld::stir_all() {
  for (int rank = 0; rank < size(); ++rank) stir(rank);
}

void SimWorld::skip_time() {
  if (!events_.empty() && events_.top().first <= clock_ + jump_) {
    clock_ = events_.top().first;
    return;
  }
  clock_ += jump_;
  jump_ = std::min(2 * jump_, longest_jump);
  stir_all();  // to look at the clock: perhaps they have waited long enough
}

int SimWorld::pick() {
  for (;; skip_time()) {
    happen();
    std::uint64_t candidates = 0;
    bool all_ended = true;
    for (const RankState& it : ranks_) {
      candidates += it.doing == RankState::Doing::running;
      all_ended &= it.doing == RankState::Doing::ended;
    }
    if (all_ended) return nobody;
    if (candidates == 0) continue;
    std::uint64_t chosen = below(candidates);
    for (int rank = 0; rank < size(); ++rank) {
      if (state(rank).doing == RankState::Doing::running && chosen-- == 0) return rank;
    }
  }
}

void SimWorld::pass_baton(int to) {
  record({'b', static_cast<std::uint64_t>(to), static_cast<std::uint64_t>(clock_)});
  ++report_.switches;
  const std::lock_guard lock(mutex_);
  holder_ = to;
  (to == nobody ? all_ended_ : state(to).turn).notify_one();
}

void SimWorld::wait_for_baton(int rank) {
  std::unique_lock lock(mutex_);
  state(rank).turn.wait(lock, [&] { return holder_ == rank; });
}

void SimWorld::yield(int rank) {
  const int next = pick();
  if (next == rank) return;
  pass_baton(next);
  wait_for_baton(rank);
}

// ---- calls of a rank ----

void SimWorld::enter(int rank) {
  clock_ += call_time;
  ++state(rank).calls;
  strike(rank);
  if (below(static_cast<std::uint64_t>(options_.switch_one_in)) == 0) yield(rank);
}

void SimWorld::strike(int rank) {
  RankState& me = state(rank);
  if (me.lost) throw Lost{};
  for (const SimFault& fault : options_.faults) {
    if (fault.rank != rank || fault.at_call != me.calls) continue;
    if (fault.kind == SimFault::Kind::lost) {
      me.lost = true;
      leave(rank);
      throw Lost{};
    }
    me.stalled_until = clock_ + nanoseconds(fault.duration);
    me.doing = RankState::Doing::stalled;
    events_.emplace(me.stalled_until, rank);
    yield(rank);
  }
}

std::size_t SimWorld::send(int from, int to, std::span<const std::byte> bytes) {
  enter(from);
  check_aborted();
  check<PeerError>(!state(to).gone, "rank {} is gone", to);
  Channel& stream = channel(from, to);
  const std::size_t room = std::min(options_.channel_bytes - stream.bytes, bytes.size());
  if (room == 0) return 0;
  const std::size_t count = some_of(room);
  const auto longest = static_cast<std::uint64_t>(nanoseconds(options_.max_delay));
  stream.last_arrival =
      std::max(stream.last_arrival, clock_ + static_cast<Nanoseconds>(below(longest + 1)));
  stream.messages.push_back({stream.last_arrival, {bytes.begin(), bytes.begin() + count}});
  stream.bytes += count;
  events_.emplace(stream.last_arrival, to);
  moved();
  record({'s', index(from), index(to), count, static_cast<std::uint64_t>(stream.last_arrival)});
  return count;
}

std::size_t SimWorld::receive(int to, int from, std::span<std::byte> bytes) {
  enter(to);
  check_aborted();
  Channel& stream = channel(from, to);
  check<PeerError>(!stream.messages.empty() || !state(from).gone || bytes.empty(),
                   "rank {} is gone", from);
  if (bytes.empty() || stream.messages.empty() || stream.messages.front().arrival > clock_)
    return 0;
  Message& message = stream.messages.front();
  const std::size_t count = some_of(std::min(bytes.size(), message.bytes.size() - message.taken));
  std::copy_n(message.bytes.begin() + static_cast<std::ptrdiff_t>(message.taken), count,
              bytes.begin());
  message.taken += count;
  if (message.taken == message.bytes.size()) stream.messages.pop_front();
  stream.bytes -= count;
  stir(from);  // it may wait for room
  moved();
  record({'r', index(from), index(to), count});
  return count;
}

void SimWorld::relax(int rank) {
  clock_ += call_time;
  ++state(rank).calls;
  strike(rank);
  check_aborted();
  // What happened between the last look and now must not be slept through.
  if (!std::exchange(state(rank).stirred, false)) state(rank).doing = RankState::Doing::waiting;
  yield(rank);
  check_aborted();
}

SharedRegion SimWorld::allocate(int rank, std::size_t bytes) {
  enter(rank);
  check<CommError>(options_.shared_memory, "this world has no shared memory");
  const std::size_t number = state(rank).allocations++;
  if (allocations_.size() == number) allocations_.emplace_back().bytes = bytes;
  Allocation& mine = allocations_[number];
  check<CommError>(mine.bytes == bytes, "rank {} asks for {} bytes, another rank for {}", rank,
                   bytes, mine.bytes);
  mine.here.resize(ranks_.size());
  mine.here[index(rank)] = true;
  if (++mine.arrived == size()) {
    const std::size_t stride = whole_pages(bytes);
    const std::size_t total = stride * ranks_.size();
    auto* const memory =
        static_cast<std::byte*>(::operator new(total, std::align_val_t(page_bytes)));
    std::fill_n(memory, total, std::byte{0});
    mine.region.bytes = bytes;
    mine.region.keeper = std::shared_ptr<void>(
        memory, [](void* m) { ::operator delete(m, std::align_val_t(page_bytes)); });
    for (int r = 0; r < size(); ++r) mine.region.base.push_back(memory + index(r) * stride);
    stir_all();
  }
  const Nanoseconds limit = clock_ + nanoseconds(options_.join_timeout);
  while (mine.arrived < size()) {
    for (int peer = 0; peer < size(); ++peer) {
      check<PeerError>(!state(peer).gone || state(peer).allocations > number, "rank {} is gone",
                       peer);
    }
    if (clock_ >= limit) {
      std::vector<int> missing;
      for (int peer = 0; peer < size(); ++peer)
        if (!mine.here[index(peer)]) missing.push_back(peer);
      fail<CommError>("timed out after {:g} s: {} where {} bytes are to be allocated",
                      options_.join_timeout.count(), describe_ranks(missing, "missing"), bytes);
    }
    relax(rank);
  }
  return mine.region;
}

void SimWorld::abort(int rank, std::string_view reason) {
  if (state(rank).lost || std::exchange(aborted_, true)) return;  // the lost say nothing
  reason_ = reason;
  stir_all();
}

void SimWorld::leave(int rank) {
  state(rank).gone = true;
  stir_all();
}

// ---- the transport of one rank ----

class SimTransport final : public Transport {
 public:
  SimTransport(SimWorld& world, int rank) : world_(world), rank_(rank) {}
  ~SimTransport() override { world_.leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  std::string_view name() const override { return "sim"; }
  bool has_shared_memory() const override { return world_.shared_memory(); }
  std::size_t send(int peer, std::span<const std::byte> bytes) override {
    return world_.send(rank_, peer, bytes);
  }
  std::size_t receive(int peer, std::span<std::byte> bytes) override {
    return world_.receive(rank_, peer, bytes);
  }
  SharedRegion allocate(std::size_t bytes) override { return world_.allocate(rank_, bytes); }
  void relax(unsigned) override { world_.relax(rank_); }
  Seconds now() const override { return Seconds(static_cast<double>(world_.clock()) * 1e-9); }
  void abort(std::string_view reason) noexcept override { world_.abort(rank_, reason); }

 private:
  SimWorld& world_;
  int rank_;
};

SimReport SimWorld::run(const std::function<void(int, std::unique_ptr<Transport>)>& program,
                        const std::function<std::unique_ptr<Transport>(int)>& make_transport) {
  report_.errors.resize(ranks_.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      wait_for_baton(rank);
      try {
        program(rank, make_transport(rank));
      } catch (const Lost&) {
        // reported below
      } catch (...) {
        report_.errors[index(rank)] = std::current_exception();
      }
      leave(rank);
      state(rank).doing = RankState::Doing::ended;
      pass_baton(pick());
    });
  }
  pass_baton(pick());
  {
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [&] { return holder_ == nobody; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const RankState& it : ranks_) report_.lost.push_back(it.lost);
  report_.end = Seconds(static_cast<double>(clock_) * 1e-9);
  return std::move(report_);
}

}  // namespace

SimReport simulate(const SimOptions& options,
                   const std::function<void(int rank, std::unique_ptr<Transport>)>& program) {
  check<UsageError>(options.size >= 1, "[simulate] a world has at least 1 rank, got {}",
                    options.size);
  SimWorld world(options);
  return world.run(program, [&](int rank) { return std::make_unique<SimTransport>(world, rank); });
}

}  // namespace lockstep::dist
