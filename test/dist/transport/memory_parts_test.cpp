// The parts of transports over memory, each alone: who is here, regions, two kinds of peers.

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "lockstep/dist/transport/presence.h"
#include "lockstep/dist/transport/regions.h"
#include "lockstep/dist/transport/transports.h"
#include "support/expect.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using lockstep::test::message_of;

namespace {

template <class F>
std::string error_of(F&& body) {
  try {
    body();
  } catch (const std::exception&) {
    return message_of(std::current_exception());
  }
  return "";
}

/// Moves nothing, and counts how often it is told to relax.
struct Idle final : Transport {
  Idle(int rank, int size, int& relaxed) : rank_(rank), size_(size), relaxed_(relaxed) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "idle"; }
  bool has_shared_memory() const override { return false; }
  std::size_t send(int, std::span<const std::byte>) override { return 0; }
  std::size_t receive(int, std::span<std::byte>) override { return 0; }
  SharedRegion allocate(std::size_t) override { return {}; }
  void relax(unsigned) override { ++relaxed_; }
  Seconds now() const override { return Seconds(0); }
  void abort(std::string_view) noexcept override {}

 private:
  int rank_, size_;
  int& relaxed_;
};

}  // namespace

TEST_CASE("presence: a reason of any length arrives, cut where there is no room") {
  for (const std::size_t length : {0, 1, 4090, 4091, 4092, 4093, 20'000}) {
    CAPTURE(length);
    const auto memory = allocate_pages(2 * page_bytes);
    const PresenceBoard board(memory.get());
    board.set(0, Presence::left);  // lies behind the reason
    board.abort(std::string(length, 'x'));
    board.abort("another reason");
    CHECK(error_of([&] { board.check_aborted(); }) ==
          std::string(std::min<std::size_t>(length, 4091), 'x'));
  }
}

TEST_CASE("regions: another size is refused, whether larger or smaller than the first") {
  for (const std::size_t second : {50u, 99u, 101u, 5000u}) {
    const auto transports = threads_transports(2, {.join_timeout = Seconds(0.05)});
    CHECK(error_of([&] { transports[0]->allocate(100); }).find("timed out") == 0);
    CHECK(error_of([&] { transports[1]->allocate(second); }) ==
          fmt::format("rank 1 asks for {} bytes, rank 0 for 100", second));
  }
}

TEST_CASE("regions: where there is no memory, no rank goes on with a region that is none") {
  const auto transports = threads_transports(3, {.join_timeout = Seconds(0.5)});
  std::vector<std::string> errors(3);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t r = 0; r < 3; ++r)
      ranks.emplace_back(
          [&, r] { errors[r] = error_of([&] { transports[r]->allocate(std::size_t{1} << 45); }); });
  }
  for (const std::string& error : errors) CHECK(error != "");
}

TEST_CASE("regions: nothing of one is kept once all ranks have given it back") {
  const auto transports = threads_transports(2);
  std::vector<std::weak_ptr<void>> kept(2);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t r = 0; r < 2; ++r)
      ranks.emplace_back([&, r] { kept[r] = transports[r]->allocate(100).keeper; });
  }
  for (const auto& region : kept) CHECK(region.expired());
}

TEST_CASE("node transport: it naps where its last tries were, inside the node or between nodes") {
  int between = 0, inside = 0;
  const auto transport =
      node_transport(std::make_unique<Idle>(0, 4, between), std::make_unique<Idle>(0, 2, inside),
                     node_map({"a", "a", "b", "b"}));
  std::array<std::byte, 3> bytes{};
  for (int round = 1; round <= 3; ++round) {
    CAPTURE(round);
    transport->receive(1, bytes);
    transport->relax(0);
    CHECK(inside == 2 * round - 1);
    transport->send(1, bytes);
    transport->relax(0);
    CHECK(inside == 2 * round);
    CHECK(between == 2 * round - 2);
    transport->receive(2, bytes);  // of another node: TCP has to look around
    transport->relax(0);
    transport->send(3, bytes);
    transport->relax(0);
    CHECK(between == 2 * round);
    CHECK(inside == 2 * round);
  }
}

TEST_CASE("a transport of several nodes names a lost peer by its number in the world") {
  struct Losing final : Transport {
    int rank() const override { return 1; }
    int size() const override { return 2; }
    std::string_view name() const override { return "losing"; }
    bool has_shared_memory() const override { return false; }
    std::size_t send(int peer, std::span<const std::byte>) override {
      throw LostPeer(peer, LostPeer::How::left);
    }
    std::size_t receive(int peer, std::span<std::byte>) override {
      throw LostPeer(peer, LostPeer::How::gone);
    }
    SharedRegion allocate(std::size_t) override { return {}; }
    void relax(unsigned) override { throw LostPeer(0, LostPeer::How::gone); }
    Seconds now() const override { return {}; }
    void abort(std::string_view) noexcept override {}
  };
  int between = 0;
  const auto transport =
      node_transport(std::make_unique<Idle>(3, 4, between), std::make_unique<Losing>(),
                     node_map({"a", "a", "b", "b"}));  // rank 3 is place 1 of node b
  std::array<std::byte, 3> bytes{};
  CHECK(error_of([&] { transport->send(2, bytes); }).find("rank 2 left") == 0);
  CHECK(error_of([&] { transport->receive(2, bytes); }) == "rank 2 is gone");
}
