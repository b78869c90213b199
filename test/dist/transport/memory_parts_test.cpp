// The parts of transports over memory, each alone: who is here, regions, two kinds of peers.

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
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

TEST_CASE("regions: each part begins a page of its own, and has its bytes to the last one") {
  for (const int ranks : {1, 2, 3, 5})
    for (const std::size_t bytes : {0, 1, 100, 4095, 4096, 4097, 10'000}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      RegionTable table(ranks);
      std::vector<SharedRegion> regions(index(ranks));
      for (int round = 0; round < 2; ++round) {
        std::vector<std::jthread> others;
        for (int r = 0; r < ranks; ++r)
          others.emplace_back([&, r] {
            int relaxed = 0;
            Idle self(r, ranks, relaxed);
            regions[index(r)] = table.allocate(self, bytes, Seconds(60), [](int) { return false; });
          });
        others.clear();
        for (int r = 0; r < ranks; ++r) {
          const SharedRegion& region = regions[index(r)];
          CHECK(region.bytes == bytes);
          CHECK(region.base == regions[0].base);
          const std::byte* const base = region.base[index(r)];
          CHECK(reinterpret_cast<std::uintptr_t>(base) % page_bytes == 0);
          CHECK(std::all_of(base, base + bytes, [](std::byte b) { return b == std::byte{}; }));
          std::fill_n(region.base[index(r)], bytes, std::byte(r + 1));
        }
        for (int r = 0; r < ranks; ++r) {
          const std::byte* const base = regions[0].base[index(r)];
          CHECK(
              std::all_of(base, base + bytes, [&](std::byte b) { return b == std::byte(r + 1); }));
        }
      }
    }
}

namespace {

/// relax() does what the test wants.
struct Relaxing final : Transport {
  Relaxing(int rank, int size, std::function<void(unsigned)> act)
      : rank_(rank), size_(size), act_(std::move(act)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "relaxing"; }
  bool has_shared_memory() const override { return false; }
  std::size_t send(int, std::span<const std::byte>) override { return 0; }
  std::size_t receive(int, std::span<std::byte>) override { return 0; }
  SharedRegion allocate(std::size_t) override { return {}; }
  void relax(unsigned round) override { act_(round); }
  Seconds longest_nap() const override { return Seconds(0.1); }
  Seconds now() const override { return time; }
  void abort(std::string_view) noexcept override {}
  Seconds time{0};

 private:
  int rank_, size_;
  std::function<void(unsigned)> act_;
};

}  // namespace

TEST_CASE("regions: of a rank that is gone its reason is told, if it gave one, else its loss") {
  for (const int gone : {1, 2, 4}) {
    RegionTable table(5);
    const auto is_gone = [&](int rank) { return rank == gone; };
    Relaxing told(0, 5, [](unsigned) { fail<PeerError>("rank 3 gave up: of its own"); });
    CHECK(error_of([&] { table.allocate(told, 100, Seconds(60), is_gone); }) ==
          "rank 3 gave up: of its own");
    RegionTable other(5);
    Relaxing untold(0, 5, [](unsigned) {});
    CHECK(error_of([&] { other.allocate(untold, 100, Seconds(60), is_gone); }) ==
          fmt::format("rank {} is gone", gone));
  }
}

TEST_CASE("regions: a rank that has called and left is not missed") {
  for (const int ranks : {2, 3, 4}) {
    RegionTable table(ranks);
    int relaxed = 0, called = 1;
    Relaxing self(0, ranks, [&](unsigned) {  // one more calls, and leaves at once
      if (called == ranks) return;
      std::jthread([&, rank = called++] {
        Idle other(rank, ranks, relaxed);
        (void)error_of([&] { table.allocate(other, 100, Seconds(-1), [](int) { return false; }); });
      });
    });
    const auto is_gone = [&](int rank) { return rank <= called; };
    CHECK(table.allocate(self, 100, Seconds(60), is_gone).bytes == 100);
  }
}

TEST_CASE("regions: who is missing is named, with the first that asked for another size") {
  for (const int first : {0, 1, 2}) {
    RegionTable table(4);
    int relaxed = 0;
    Relaxing self(first, 4, [](unsigned) {});
    Relaxing later(3, 4, [](unsigned) {});
    const auto all_here = [](int) { return false; };
    const std::string missing = error_of([&] { table.allocate(self, 100, Seconds(-1), all_here); });
    CHECK(missing.find(first == 0 ? "ranks 1, 2, 3 are missing"
                                  : (first == 1 ? "ranks 0, 2, 3 are missing"
                                                : "ranks 0, 1, 3 are missing")) != missing.npos);
    CHECK(error_of([&] { table.allocate(later, 200, Seconds(-1), all_here); }) ==
          fmt::format("rank 3 asks for 200 bytes, rank {} for 100", first));
    (void)relaxed;
  }
}

TEST_CASE("regions: time in which the waiting process did not run is not waited for") {
  RegionTable table(2);
  int rounds = 0;
  Relaxing* waiting = nullptr;
  Relaxing self(0, 2, [&](unsigned) {
    waiting->time += Seconds(++rounds == 3 ? 1000 : 0.01);  // stopped once, for long
    if (rounds < 10) return;
    int relaxed = 0;
    Idle other(1, 2, relaxed);
    if (rounds == 10) table.allocate(other, 100, Seconds(1), [](int) { return false; });
  });
  waiting = &self;
  CHECK(table.allocate(self, 100, Seconds(1), [](int) { return false; }).bytes == 100);
  CHECK(rounds == 10);
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
      throw LostPeer(peer, Fault::left);
    }
    std::size_t receive(int peer, std::span<std::byte>) override {
      throw LostPeer(peer, Fault::gone);
    }
    SharedRegion allocate(std::size_t) override { return {}; }
    void relax(unsigned) override { throw LostPeer(0, Fault::gone); }
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
