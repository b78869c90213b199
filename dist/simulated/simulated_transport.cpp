#include <algorithm>
#include <cstring>

#include "lockstep/dist/simulated/sim_world.h"

namespace lockstep::dist {
namespace {

class SimTransport final : public Transport {
 public:
  SimTransport(SimWorld& world, SimGroup& group, int place)
      : world_(world), group_(group), place_(place), rank_(group.members[index(place)]) {}
  ~SimTransport() override {
    group_.gone[index(place_)] = true;
    world_.stir_all();
  }

  int rank() const override { return place_; }
  int size() const override { return static_cast<int>(group_.members.size()); }
  std::string_view name() const override { return "sim"; }
  bool has_shared_memory() const override { return world_.options.shared_memory; }
  std::size_t send(int peer, std::span<const std::byte> bytes) override;
  std::size_t receive(int peer, std::span<std::byte> bytes) override;
  SharedRegion allocate(std::size_t bytes) override;
  void relax(unsigned) override;
  void compute(Seconds duration) {
    world_.begin_call(rank_);
    world_.stand_still(rank_, duration);
    check_aborted();
  }
  std::unique_ptr<Transport> among(const std::string& name, const std::vector<int>& members);
  void kill(int place) { world_.lose(group_.members[index(place)]); }
  Seconds longest_nap() const override { return Seconds(1e9); }  // all of its time is time to run
  Seconds now() const override { return world_.clock(); }
  void abort(std::string_view reason) noexcept override {
    if (world_.state(rank_).lost || group_.aborted) return;  // a lost rank says nothing
    group_.aborted = reason;
    world_.stir_all();
  }

 private:
  void begin_move() {
    world_.begin_move(rank_);
    check_aborted();
  }
  void check_aborted() const {
    if (group_.aborted) throw PeerError(*group_.aborted);
  }

  SimWorld& world_;
  SimGroup& group_;
  int place_, rank_;  // in the group, and of the world
};

std::unique_ptr<Transport> SimTransport::among(const std::string& name,
                                               const std::vector<int>& members) {
  const auto found = std::ranges::find(members, rank_);
  check<UsageError>(found != members.end(), "[simulate] rank {} is none of the members of '{}'",
                    rank_, name);
  return sim_transport(world_, world_.group(name, members),
                       static_cast<int>(found - members.begin()));
}

std::size_t SimTransport::send(int peer, std::span<const std::byte> bytes) {
  begin_move();
  check<PeerError>(!group_.gone[index(peer)], "rank {} is gone", peer);
  SimChannel& stream = group_.channel(place_, peer);
  const std::size_t room = std::min(world_.options.channel_bytes - stream.bytes, bytes.size());
  if (room == 0) return 0;
  const std::size_t count = world_.some_of(room);
  const auto longest = duration_cast<nanoseconds>(world_.options.max_delay).count();
  const nanoseconds delay(world_.below(static_cast<std::uint64_t>(longest) + 1));
  stream.free_at = std::max(stream.free_at, world_.clock());
  if (const double speed = world_.options.bytes_per_second; speed > 0)
    stream.free_at += duration_cast<nanoseconds>(Seconds(static_cast<double>(count) / speed));
  const int to = group_.members[index(peer)];
  const nanoseconds arrives = world_.arrival(rank_, to, stream.free_at - world_.clock() + delay);
  stream.last_arrival = std::max(stream.last_arrival, arrives);
  stream.messages.push_back({stream.last_arrival, {bytes.begin(), bytes.begin() + count}});
  stream.bytes += count;
  world_.stir_at(stream.last_arrival, to);
  world_.moved();
  world_.record({'s', index(rank_), index(to), count,
                 static_cast<std::uint64_t>(stream.last_arrival.count())});
  return count;
}

std::size_t SimTransport::receive(int peer, std::span<std::byte> bytes) {
  begin_move();
  SimChannel& stream = group_.channel(peer, place_);
  check<PeerError>(!stream.messages.empty() || !group_.gone[index(peer)] || bytes.empty(),
                   "rank {} is gone", peer);
  if (bytes.empty() || stream.messages.empty() || stream.messages.front().arrival > world_.clock())
    return 0;
  SimMessage& message = stream.messages.front();
  const std::size_t left = message.bytes.size() - message.taken;
  const std::size_t count = world_.some_of(std::min(bytes.size(), left));
  std::memcpy(bytes.data(), message.bytes.data() + message.taken, count);
  message.taken += count;
  if (count == left) stream.messages.pop_front();
  stream.bytes -= count;
  world_.stir(group_.members[index(peer)]);  // it may wait for room
  world_.moved();
  world_.record({'r', index(group_.members[index(peer)]), index(rank_), count});
  return count;
}

SharedRegion SimTransport::allocate(std::size_t bytes) {
  begin_move();
  check<CommError>(has_shared_memory(), "this world has no shared memory");
  world_.stir_all();  // this rank may be the last one that the others wait for
  return group_.regions.allocate(*this, bytes, world_.options.join_timeout,
                                 [&](int peer) { return group_.gone[index(peer)]; });
}

void SimTransport::relax(unsigned) {
  world_.begin_call(rank_);
  check_aborted();
  // A rank must not sleep through what happened since it last looked.
  SimRank& me = world_.state(rank_);
  me.waiting = !std::exchange(me.stirred, false);
  world_.yield(rank_);
  check_aborted();
}

SimTransport& simulated(Transport& transport, std::string_view operation) {
  auto* const found = dynamic_cast<SimTransport*>(&transport);
  check<UsageError>(found, "[{}] {} is not a simulated transport", operation, transport.name());
  return *found;
}

}  // namespace

std::unique_ptr<Transport> sim_transport(SimWorld& world, SimGroup& group, int place) {
  return std::make_unique<SimTransport>(world, group, place);
}

void compute(Transport& transport, Seconds duration) {
  simulated(transport, "compute").compute(duration);
}

std::unique_ptr<Transport> transport_among(Transport& transport, const std::string& name,
                                           const std::vector<int>& members) {
  return simulated(transport, "transport_among").among(name, members);
}

void kill(Transport& transport, int rank) { simulated(transport, "kill").kill(rank); }

}  // namespace lockstep::dist
