// The choice of algorithms is a pure function: what it must come to, and what it must not depend
// on.

#include "lockstep/dist/collectives/choice.h"

#include <doctest/doctest.h>

using namespace lockstep::dist;

namespace {

using enum Algorithm;
constexpr auto operation = Operation::all_reduce;
constexpr std::size_t tiny_bytes = 64, large_bytes = 10 << 20;

Choice on(std::string_view transport, int world, Algorithm requested = automatic) {
  return {.requested = requested,
          .world = world,
          .shared_memory = transport == "shm",
          .costs = default_costs(transport)};
}

}  // namespace

TEST_CASE("auto: few bytes take the fewest hops, many bytes the fewest bytes") {
  CHECK(choose(on("shm", 4), operation, tiny_bytes, true) == one_shot);
  CHECK(choose(on("shm", 4), operation, large_bytes, true) == two_shot_shared);
  CHECK(choose(on("shm", 4), operation, large_bytes, false) == two_shot);
  CHECK(choose(on("tcp", 2), operation, tiny_bytes, false) == one_shot);
  CHECK(choose(on("tcp", 2), operation, large_bytes, false) == two_shot);
  CHECK(choose(on("tcp", 3), operation, large_bytes, false) == ring);
  CHECK(choose(on("tcp", 4), operation, large_bytes, false) ==
        halving);  // the same bytes in fewer hops
  CHECK(choose(on("tcp", 16), operation, 256 << 10, false) == halving);
  CHECK(choose(on("tcp", 4), Operation::reduce_scatter, large_bytes, false) == ring);
  CHECK(choose(on("tcp", 4), Operation::reduce_scatter, tiny_bytes, false) == two_shot);
}

TEST_CASE("what is asked for is what is taken") {
  for (const Algorithm algorithm : {ring, halving, one_shot})
    for (const std::size_t bytes : {tiny_bytes, large_bytes})
      for (const bool region : {false, true})
        CHECK(choose(on("shm", 3, algorithm), operation, bytes, region) == algorithm);
  CHECK(choose(on("tcp", 9, two_shot), operation, large_bytes, false) == two_shot);
  CHECK(choose(on("shm", 9, two_shot), operation, large_bytes, true) == two_shot_shared);
  CHECK(choose(on("shm", 4, two_shot), Operation::reduce_scatter, large_bytes, true) == two_shot);
  CHECK(choose(on("shm", 4, halving), Operation::all_gather, large_bytes, false) == two_shot);
  for (const std::size_t bytes : {tiny_bytes, large_bytes}) {
    CHECK(choose(on("shm", 4), Operation::all_gather, bytes, true) == two_shot_shared);
    CHECK(choose(on("shm", 4, ring), Operation::all_gather, bytes, true) == ring);
  }
}

TEST_CASE("levels are used where several ranks share each of several machines") {
  const NodeMap two = node_map({"a", "a", "b", "b"}), one = node_map({"a", "a", "a", "a"}),
                four = node_map({"a", "b", "c", "d"});
  Choice choice = on("tcp", 4);
  choice.nodes = &two;
  CHECK(choose(choice, operation, large_bytes, false) == hierarchical);
  CHECK(choose(choice, operation, tiny_bytes, false) == one_shot);
  for (const NodeMap* flat : {&one, &four}) {
    choice.nodes = flat;
    CHECK(choose(choice, operation, large_bytes, false) == halving);
  }
  choice.requested = hierarchical;  // nothing to gain: two-shot
  CHECK(choose(choice, operation, large_bytes, false) == two_shot);
}

TEST_CASE("levels of machines of unequal size: the smallest says into how many shards they cut") {
  const std::vector<std::vector<std::string>> worlds = {{"a", "a", "b"},
                                                        {"a", "b", "b", "b"},
                                                        {"a", "a", "a", "b", "b"},
                                                        {"a", "b", "b", "c", "c", "c", "c"}};
  for (const std::vector<std::string>& names : worlds) {
    const NodeMap nodes = node_map(names);
    Choice choice = on("tcp", static_cast<int>(names.size()));
    choice.nodes = &nodes;
    CAPTURE(names.size());
    CHECK(choose(choice, operation, large_bytes, false) == hierarchical);
    // The formula of hierarchical.cpp.
    const TransportCosts &between = choice.costs, inside = default_costs("shm");
    const double s = static_cast<double>(large_bytes),
                 machines = static_cast<double>(nodes.ranks.size()),
                 l = static_cast<double>(names.size()) / machines,
                 k = names[1] == "a" && names.size() == 5 ? 2 : 1;
    CHECK(predicted_seconds(choice, hierarchical, large_bytes) ==
          doctest::Approx(2 * between.hop + 2 * inside.hop + 2 * (l - 1) / l * s * inside.byte +
                          (machines - 1) / machines * s / k * (2 * between.byte + between.add))
              .epsilon(1e-12));
  }
}

TEST_CASE("other costs move the thresholds") {
  Choice choice = on("tcp", 4);
  choice.costs.crowd = 0;
  CHECK(choose(choice, operation, large_bytes, false) == two_shot);
  choice = on("shm", 2);
  choice.costs.region = 1;  // a memory that is very slow
  CHECK(choose(choice, operation, large_bytes, true) == one_shot);
}

TEST_CASE("which algorithms add up in tree order") {
  for (const Algorithm algorithm : {two_shot, two_shot_shared, one_shot, halving})
    CHECK(adds_in_tree_order(name_of(algorithm)));
  for (const Algorithm algorithm : {ring, hierarchical})
    CHECK_FALSE(adds_in_tree_order(name_of(algorithm)));
  CHECK(adds_in_tree_order("two-shot, by ipc"));
  CHECK_FALSE(adds_in_tree_order("nccl"));
}

TEST_CASE("the choices as a line of text") {
  CHECK(describe_choices(on("tcp", 3, ring), false) == "always ring");
  const std::string text = describe_choices(on("shm", 2), true);
  CHECK(text.starts_with("up to "));
  CHECK(text.find("KiB one-shot; beyond two-shot-shared") != std::string::npos);
}
