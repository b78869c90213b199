#pragma once
/// The inside of a simulated world: scheduler, clock, and the channels of each group. Of
/// simulated_world.cpp and simulated_transport.cpp alone.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/hash.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/dist/transport/regions.h"

namespace lockstep::dist {

using std::chrono::duration_cast, std::chrono::nanoseconds;

struct SimMessage {
  nanoseconds arrival;
  std::vector<std::byte> bytes;
  std::size_t taken = 0;
};

struct SimChannel {
  std::deque<SimMessage> messages;
  std::size_t bytes = 0;
  nanoseconds last_arrival{0};
  nanoseconds free_at{0};  // the link has carried all bytes that were sent
};

/// What ranks share if they have made transports of one name. Places are those in `members`.
struct SimGroup {
  explicit SimGroup(std::vector<int> ranks)
      : members(std::move(ranks)),
        regions(static_cast<int>(members.size())),
        gone(members.size()),
        channels(members.size() * members.size()) {}

  SimChannel& channel(int from, int to) {
    return channels[index(from) * members.size() + index(to)];
  }

  const std::vector<int> members;
  RegionTable regions;
  std::vector<bool> gone;  // by place: its transport is destroyed, or it is lost
  std::vector<SimChannel> channels;
  std::optional<std::string> aborted;  // why
};

struct SimRank {
  bool waiting = false;  // until something happens to it
  bool stirred = false;  // something happened to it since it last began to wait
  bool lost = false;
  bool ended = false;
  nanoseconds stalled_until{0};
  std::uint64_t calls = 0;
  std::condition_variable turn;
};

/// Only the thread that holds the baton touches anything here, except the baton itself.
class SimWorld {
 public:
  explicit SimWorld(const SimOptions& given);

  SimReport run(const SimProgram& program);

  SimRank& state(int rank) { return ranks_[index(rank)]; }
  SimGroup& group(const std::string& name, const std::vector<int>& members);
  nanoseconds clock() const { return clock_; }

  void begin_call(int rank);  // time passes, faults strike
  void begin_move(int rank);  // the same, and another rank may run
  void stand_still(int rank, Seconds duration);
  void yield(int rank);  // another rank may run
  void lose(int rank);
  void stir(int rank);  // something happened to it: it must look again
  void stir_all();
  void stir_at(nanoseconds time, int rank) { events_.emplace(time, rank); }
  void moved();
  /// When bytes that leave `from` now and take `delay` arrive at `to`.
  nanoseconds arrival(int from, int to, nanoseconds delay) const;

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::size_t some_of(std::size_t most) { return below(2) ? most : 1 + below(most); }
  void record(std::initializer_list<std::uint64_t> what) {
    for (const std::uint64_t value : what) trace_.add(value);
  }

  const SimOptions options;

 private:
  int pick();
  void skip_time();  // no rank can run
  void pass_baton(int to);
  void wait_for_baton(int rank);
  void run_rank(int rank, const SimProgram& program);

  std::mt19937_64 random_;
  std::deque<SimRank> ranks_;               // a deque: condition variables cannot move
  std::map<std::string, SimGroup> groups_;  // "": all ranks
  nanoseconds clock_{0};
  nanoseconds jump_;
  using Event = std::pair<nanoseconds, int>;  // something reaches this rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Fnv1a trace_;
  SimReport report_;

  std::mutex mutex_;  // guards the baton
  int holder_;
};

/// Unwinds the thread of a lost rank. Not an std::exception: ordinary code does not catch it.
struct SimLost {};

/// The transport of the rank at `place` of a group.
std::unique_ptr<Transport> sim_transport(SimWorld& world, SimGroup& group, int place);

}  // namespace lockstep::dist
