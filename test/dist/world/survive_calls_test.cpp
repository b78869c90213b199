// survive() by itself: what it tells the launcher, what the other ranks hear, and whom its errors
// blame. The ranks are threads, and their launcher is one in virtual time.

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/dist/world/fabrics.h"
#include "lockstep/dist/world/launcher_link.h"
#include "lockstep/dist/world/survive.h"
#include "support/expect.h"
#include "support/text.h"

using namespace lockstep;
using dist::Fabric, dist::Generation, dist::Seconds;

namespace survive_calls {

/// Publishes the generations in turn: each when the ranks of the one before look for a newer one.
struct ThreadLink final : dist::LauncherLink {
  int rank() const override { return own; }
  Generation newest() override { return generations[at]; }
  void tell(const dist::RankEvent& event) noexcept override {
    using enum dist::RankEvent::Kind;
    if (event.kind == joined) joins.push_back(event.number);
    if (event.kind == survives) ++calls;
    if (event.kind == limited) most_ranks.push_back(event.number);
    if (event.kind == suspected) suspicions.push_back(event.rank);
  }
  Seconds now() const override { return time; }
  void pause() override {
    time += Seconds(0.5);
    if (at + 1 < generations.size()) ++at;
  }
  std::shared_ptr<Fabric> meet(const Generation&) override { return fabrics[at]; }

  int own = 0;
  std::vector<Generation> generations;
  std::vector<std::shared_ptr<Fabric>> fabrics;  // of this rank, by generation
  std::size_t at = 0;
  Seconds time{0};
  int calls = 0;  // of survive()
  std::vector<int> joins, most_ranks, suspicions;
};

struct Ended {
  std::shared_ptr<ThreadLink> link = std::make_shared<ThreadLink>();
  std::string message, culprit;  ///< of the error that survive() has thrown
};

/// Ranks that the launcher knows as `members` call survive(body).
template <class F>
std::vector<Ended> run(const std::vector<int>& members, F body, const SurviveOptions& options = {},
                       std::size_t generations = 1) {
  const int size = static_cast<int>(members.size());
  std::vector<Ended> all(members.size());
  for (std::size_t g = 0; g < generations; ++g) {
    const auto fabrics = dist::threads_fabrics(size, {.communicator = {.timeout = Seconds(30)}});
    for (std::size_t r = 0; r < members.size(); ++r) {
      all[r].link->own = members[r];
      all[r].link->generations.push_back({.number = 3 + 2 * static_cast<int>(g),
                                          .members = members,
                                          .nodes = std::vector<int>(members.size())});
      all[r].link->fabrics.push_back(fabrics[r]);
    }
  }
  std::vector<std::thread> threads;
  for (Ended& mine : all)
    threads.emplace_back([&] {
      try {
        World world = World::join_over(mine.link);
        mine.link->fabrics[0] = nullptr;
        survive(world, body, options);
      } catch (const Error& error) {
        mine.message = error.what();
        mine.culprit = test::blamed_by(error);
      }
    });
  for (std::thread& thread : threads) thread.join();
  return all;
}

TEST_CASE(
    "survive calls: the launcher hears of it, and of the most ranks if there is such a number") {
  for (const int most : {0, 1, 5})
    for (const Ended& rank : run({4, 7}, [](World&) {}, {.most_ranks = most})) {
      CHECK(rank.message == "");
      CHECK(rank.link->calls == 1);
      CHECK(rank.link->most_ranks == (most > 0 ? std::vector{most} : std::vector<int>{}));
      CHECK(rank.link->joins == std::vector{3});
    }
}

TEST_CASE(
    "survive calls: an error of the program blames by the launcher's numbers, on every rank") {
  for (const int wrong : {0, 1, 2}) {
    const auto all = run({2, 5, 9}, [&](World&) {
      throw blaming(Blame{{wrong}, Fault::in_minority}, StateError("it fails"));
    });
    for (const Ended& rank : all) {
      CHECK(rank.message == "it fails");
      CHECK(rank.culprit == fmt::format("rank {} is in the minority", std::vector{2, 5, 9}[wrong]));
      CHECK(rank.link->suspicions.empty());
    }
  }
}

TEST_CASE(
    "survive calls: a loss that no launcher knows of ends it, and the others are told at once") {
  for (const std::size_t first : {0, 1, 2}) {
    const std::vector<int> members{2, 5, 9};
    const auto all = run(members, [&](World& world) {
      if (dist::index(world.rank()) == first)
        throw blaming(Blame{{world.rank()}, Fault::gone}, CommError("a broken wire"));
      world.communicator().barrier("which never ends").wait();
    });
    for (std::size_t r = 0; r < all.size(); ++r) {
      CAPTURE(all[r].message);
      CHECK(all[r].link->time >= Seconds(5));  // so long it has waited for a newer generation
      if (r == first) CHECK(all[r].message == "a broken wire");
      if (r == first) CHECK(all[r].culprit == fmt::format("rank {} is gone", members[first]));
      if (r != first)
        CHECK(test::contains(all[r].message, fmt::format("rank {} lost a peer", first)));
    }
  }
}

TEST_CASE(
    "survive calls: after a loss the body is called in the next generation, whatever its number") {
  for (const std::size_t generations : {2, 4}) {
    std::vector<std::vector<int>> seen(2);
    const auto all = run(
        {1, 6},
        [&](World& world) {
          auto& mine = seen[dist::index(world.rank())];
          mine.push_back(world.generation());
          if (mine.size() < generations) throw CommError("somebody is lost");
        },
        {}, generations);
    std::vector<int> numbers;
    for (std::size_t g = 0; g < generations; ++g) numbers.push_back(3 + 2 * static_cast<int>(g));
    for (const auto& mine : seen) CHECK(mine == numbers);
    for (const Ended& rank : all) {
      CHECK(rank.message == "");
      CHECK(rank.link->joins == numbers);
      CHECK(rank.link->calls == 1);
    }
  }
}

}  // namespace survive_calls
