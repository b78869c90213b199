#include "lockstep/dist/simulated/simulated_world.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <queue>
#include <random>
#include <thread>
#include <utility>

#include "lockstep/core/hash.h"
#include "lockstep/dist/transport/regions.h"

namespace lockstep::dist {
namespace {

using std::chrono::duration_cast, std::chrono::nanoseconds;

constexpr nanoseconds call_time{100};
constexpr nanoseconds first_jump{1'000'000};  // of an idle world; doubled while nothing moves
constexpr nanoseconds longest_jump{1'000'000'000};
constexpr int nobody = -1;

// Unwinds the thread of a lost rank. Not an std::exception: ordinary code does not catch it.
struct Lost {};

struct Message {
  nanoseconds arrival;
  std::vector<std::byte> bytes;
  std::size_t taken = 0;
};

struct Channel {
  std::deque<Message> messages;
  std::size_t bytes = 0;
  nanoseconds last_arrival{0};
  nanoseconds free_at{0};  // the link has carried all bytes that were sent
};

struct RankState {
  bool waiting = false;  // until something happens to it
  bool stirred = false;  // something happened to it since it last began to wait
  bool lost = false;
  bool gone = false;  // its transport is destroyed, or it is lost
  bool ended = false;
  nanoseconds stalled_until{0};
  std::uint64_t calls = 0;
  std::condition_variable turn;
};

// Scheduler, clock and channels of all ranks. Only the thread that holds the baton touches anything
// here, except the baton itself.
class SimWorld {
 public:
  explicit SimWorld(const SimOptions& given)
      : options(given),
        regions(given.size),
        random_(given.seed),
        ranks_(index(given.size)),
        channels_(index(given.size) * index(given.size)) {}

  SimReport run(const SimProgram& program);

  RankState& state(int rank) { return ranks_[index(rank)]; }
  Channel& channel(int from, int to) { return channels_[index(from) * ranks_.size() + index(to)]; }
  nanoseconds clock() const { return clock_; }

  void begin_call(int rank);  // time passes, faults strike
  void begin_move(int rank);  // the same, and another rank may run
  void stand_still(int rank, Seconds duration);
  void yield(int rank);  // another rank may run
  void leave(int rank);
  void stir(int rank);  // something happened to it: it must look again
  void stir_all();
  void stir_at(nanoseconds time, int rank) { events_.emplace(time, rank); }
  void moved() { jump_ = first_jump; }
  void abort(std::string_view reason);
  void check_aborted() const {
    if (aborted_) throw PeerError(*aborted_);
  }

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::size_t some_of(std::size_t most) { return below(2) ? most : 1 + below(most); }
  void record(std::initializer_list<std::uint64_t> what) {
    for (const std::uint64_t value : what) trace_.add(value);
  }

  const SimOptions options;
  RegionTable regions;

 private:
  int pick();
  void skip_time();  // nobody can run
  void pass_baton(int to);
  void wait_for_baton(int rank);
  void run_rank(int rank, const SimProgram& program);

  std::mt19937_64 random_;
  std::deque<RankState> ranks_;  // a deque: condition variables cannot move
  std::vector<Channel> channels_;
  nanoseconds clock_{0};
  nanoseconds jump_ = first_jump;
  using Event = std::pair<nanoseconds, int>;  // something reaches this rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::optional<std::string> aborted_;  // why
  Fnv1a trace_;
  SimReport report_;

  std::mutex mutex_;  // guards the baton
  int holder_ = nobody;
};

// ---- the baton ----

void SimWorld::stir(int rank) {
  state(rank).stirred = true;
  state(rank).waiting = false;
}

void SimWorld::stir_all() {
  for (int rank = 0; rank < options.size; ++rank) stir(rank);
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
  const auto can_run = [this](const RankState& it) {
    return !it.ended && !it.waiting && clock_ >= it.stalled_until;
  };
  for (;; skip_time()) {
    for (; !events_.empty() && events_.top().first <= clock_; events_.pop())
      stir(events_.top().second);
    if (std::ranges::all_of(ranks_, &RankState::ended)) return nobody;
    const auto candidates = std::ranges::count_if(ranks_, can_run);
    if (candidates == 0) continue;
    std::uint64_t chosen = below(static_cast<std::uint64_t>(candidates));
    for (int rank = 0; rank < options.size; ++rank)
      if (can_run(state(rank)) && chosen-- == 0) return rank;
  }
}

void SimWorld::pass_baton(int to) {
  record({'b', static_cast<std::uint64_t>(to), static_cast<std::uint64_t>(clock_.count())});
  const std::lock_guard lock(mutex_);
  holder_ = to;
  if (to != nobody) state(to).turn.notify_one();
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

void SimWorld::begin_call(int rank) {
  clock_ += call_time;
  RankState& me = state(rank);
  ++me.calls;
  if (me.lost) throw Lost{};
  for (const SimFault& fault : options.faults) {
    if (fault.rank != rank || fault.at_call != me.calls) continue;
    if (fault.kind == SimFault::Kind::lost) {
      me.lost = true;
      leave(rank);
      throw Lost{};
    }
    stand_still(rank, fault.duration);
  }
  check_aborted();
}

void SimWorld::stand_still(int rank, Seconds duration) {
  state(rank).stalled_until = clock_ + duration_cast<nanoseconds>(duration);
  stir_at(state(rank).stalled_until, rank);
  yield(rank);
}

void SimWorld::begin_move(int rank) {
  begin_call(rank);
  if (below(static_cast<std::uint64_t>(options.switch_one_in)) == 0) yield(rank);
  check_aborted();
}

void SimWorld::abort(std::string_view reason) {
  if (aborted_) return;
  aborted_ = reason;
  stir_all();
}

void SimWorld::leave(int rank) {
  state(rank).gone = true;
  stir_all();
}

class SimTransport final : public Transport {
 public:
  SimTransport(SimWorld& world, int rank) : world_(world), rank_(rank) {}
  ~SimTransport() override { world_.leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return world_.options.size; }
  std::string_view name() const override { return "sim"; }
  bool has_shared_memory() const override { return world_.options.shared_memory; }
  std::size_t send(int peer, std::span<const std::byte> bytes) override;
  std::size_t receive(int peer, std::span<std::byte> bytes) override;
  SharedRegion allocate(std::size_t bytes) override;
  void relax(unsigned) override;
  void compute(Seconds duration) {
    world_.begin_call(rank_);
    world_.stand_still(rank_, duration);
    world_.check_aborted();
  }
  Seconds longest_nap() const override { return Seconds(1e9); }  // all of its time is time to run
  Seconds now() const override { return world_.clock(); }
  void abort(std::string_view reason) noexcept override {
    if (!world_.state(rank_).lost) world_.abort(reason);  // a lost rank says nothing
  }

 private:
  SimWorld& world_;
  int rank_;
};

std::size_t SimTransport::send(int peer, std::span<const std::byte> bytes) {
  world_.begin_move(rank_);
  check<PeerError>(!world_.state(peer).gone, "rank {} is gone", peer);
  Channel& stream = world_.channel(rank_, peer);
  const std::size_t room = std::min(world_.options.channel_bytes - stream.bytes, bytes.size());
  if (room == 0) return 0;
  const std::size_t count = world_.some_of(room);
  const auto longest = duration_cast<nanoseconds>(world_.options.max_delay).count();
  const nanoseconds delay(world_.below(static_cast<std::uint64_t>(longest) + 1));
  stream.free_at = std::max(stream.free_at, world_.clock());
  if (const double speed = world_.options.bytes_per_second; speed > 0)
    stream.free_at += duration_cast<nanoseconds>(Seconds(static_cast<double>(count) / speed));
  stream.last_arrival = std::max(stream.last_arrival, stream.free_at + delay);
  stream.messages.push_back({stream.last_arrival, {bytes.begin(), bytes.begin() + count}});
  stream.bytes += count;
  world_.stir_at(stream.last_arrival, peer);
  world_.moved();
  world_.record({'s', index(rank_), index(peer), count,
                 static_cast<std::uint64_t>(stream.last_arrival.count())});
  return count;
}

std::size_t SimTransport::receive(int peer, std::span<std::byte> bytes) {
  world_.begin_move(rank_);
  Channel& stream = world_.channel(peer, rank_);
  check<PeerError>(!stream.messages.empty() || !world_.state(peer).gone || bytes.empty(),
                   "rank {} is gone", peer);
  if (bytes.empty() || stream.messages.empty() || stream.messages.front().arrival > world_.clock())
    return 0;
  Message& message = stream.messages.front();
  const std::size_t left = message.bytes.size() - message.taken;
  const std::size_t count = world_.some_of(std::min(bytes.size(), left));
  std::memcpy(bytes.data(), message.bytes.data() + message.taken, count);
  message.taken += count;
  if (count == left) stream.messages.pop_front();
  stream.bytes -= count;
  world_.stir(peer);  // it may wait for room
  world_.moved();
  world_.record({'r', index(peer), index(rank_), count});
  return count;
}

SharedRegion SimTransport::allocate(std::size_t bytes) {
  world_.begin_move(rank_);
  check<CommError>(has_shared_memory(), "this world has no shared memory");
  world_.stir_all();  // this rank may be the last one that the others wait for
  return world_.regions.allocate(*this, bytes, world_.options.join_timeout,
                                 [&](int peer) { return world_.state(peer).gone; });
}

void SimTransport::relax(unsigned) {
  world_.begin_call(rank_);
  // A rank must not sleep through what happened since it last looked.
  RankState& me = world_.state(rank_);
  me.waiting = !std::exchange(me.stirred, false);
  world_.yield(rank_);
  world_.check_aborted();
}

// ---- a run ----

void SimWorld::run_rank(int rank, const SimProgram& program) {
  wait_for_baton(rank);
  try {
    program(rank, std::make_unique<SimTransport>(*this, rank));
  } catch (const Lost&) {
    // told by RankState::lost
  } catch (...) {
    report_.errors[index(rank)] = std::current_exception();
  }
  leave(rank);
  state(rank).ended = true;
  pass_baton(pick());
}

SimReport SimWorld::run(const SimProgram& program) {
  report_.errors.resize(ranks_.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank)
    threads.emplace_back([&, rank] { run_rank(rank, program); });
  pass_baton(pick());
  for (std::thread& thread : threads) thread.join();
  for (const RankState& it : ranks_) report_.lost.push_back(it.lost);
  report_.end = clock_;
  report_.trace = trace_.value();
  return std::move(report_);
}

}  // namespace

void compute(Transport& transport, Seconds duration) {
  auto* simulated = dynamic_cast<SimTransport*>(&transport);
  check<UsageError>(simulated, "[compute] {} is not a simulated transport", transport.name());
  simulated->compute(duration);
}

SimReport simulate(const SimOptions& options, const SimProgram& program) {
  check<UsageError>(options.size >= 1, "[simulate] a world has at least 1 rank, got {}",
                    options.size);
  return SimWorld(options).run(program);
}

}  // namespace lockstep::dist
