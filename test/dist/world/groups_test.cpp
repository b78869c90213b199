// Groups are worlds: on threads, on processes of one machine, and over several machines.

#include <doctest/doctest.h>

#include "dist/collectives/exercise.h"
#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/dist/world/world.h"
#include "support/forked_ranks.h"

namespace lockstep {
namespace {

using dist::testing::exercise;
using test::expect;

// Ranks with equal rank % 2, all of them but the last, the last one alone, at once and in turns.
void use_groups(const World& world) {
  const int rank = world.rank(), size = world.size();
  const auto parity = world.split(rank % 2);
  expect(parity && parity->rank() == rank / 2, "rank {} is {} in its group", rank,
         parity ? parity->rank() : -1);
  expect(parity->size() == (size + 1 - rank % 2) / 2, "a group of {}", parity->size());
  expect(parity->local_rank() == world.local_rank(), "local rank {}", parity->local_rank());

  const bool last = rank == size - 1;
  const auto most = world.split(last ? -1 : 7);
  expect(most.has_value() == !last, "rank {} of {} in the wrong group", rank, size);
  const auto lonely = world.new_group({size - 1});
  expect(lonely.has_value() == last, "rank {} of {} in the wrong group", rank, size);

  const Tensor sum = Tensor::full({3}, rank, DType::i64);
  dist::Work under_way = world.communicator().all_reduce(sum, "all");  // while groups work
  exercise<float>(parity->communicator(), 1001);
  if (most) exercise<double>(most->communicator(), 77);
  if (lonely) exercise<float>(lonely->communicator(), 5);
  exercise<std::int64_t>(parity->layer_communicator(), 12);
  under_way.wait();
  expect(sum.data<std::int64_t>()[0] == size * (size - 1) / 2, "the whole world's sum");

  const auto half = parity->split(parity->rank() / 2);  // a group of a group
  exercise<float>(half->communicator(), 100);
  const auto quarter = half->split(0);
  exercise<float>(quarter->communicator(), 100);
}

void use_groups_in_processes(int size, const std::string& transport, int ranks_per_node) {
  CAPTURE(size);
  CAPTURE(transport);
  CAPTURE(ranks_per_node);
  const test::TemporaryFolder folder;
  const bool one_machine = ranks_per_node >= size;
  const std::string rendezvous =
      one_machine ? "unix:" + folder / "rendezvous" : test::free_address();
  test::check_all_well(test::run_processes(size, [&](int rank) {
    test::set_rank_environment(rank, size, rendezvous, ranks_per_node);
    const World world = World::join({.transport = transport, .timeout = dist::Seconds(20)});
    exercise<float>(world.communicator(), 5001);
    use_groups(world);
  }));
}

TEST_CASE("groups: threads") {
  for (const int size : {2, 3, 4, 7}) {
    CAPTURE(size);
    run_threads(size, {}, use_groups);
  }
}

TEST_CASE("groups: processes of one machine, and of several") {
  for (const std::string transport : {"shm", "tcp"})
    for (const int size : {2, 3, 5}) use_groups_in_processes(size, transport, dist::max_ranks);
  use_groups_in_processes(4, "", 2);
  use_groups_in_processes(5, "", 2);
  use_groups_in_processes(4, "tcp", 3);
  use_groups_in_processes(8, "", dist::max_ranks);
}

TEST_CASE("groups: two nodes reach each other by tcp, ranks of one node by memory") {
  const std::string rendezvous = test::free_address();
  test::check_all_well(test::run_processes(5, [&](int rank) {
    test::set_rank_environment(rank, 5, rendezvous, 3);
    const World world = World::join({.timeout = dist::Seconds(20)});
    expect(world.transport() == "shm+tcp", "{}", world.transport());
    const auto& communicator = world.communicator();
    expect(communicator.algorithm(1 << 24) == "hierarchical", "{}",
           communicator.algorithm(1 << 24));
    for (const std::int64_t count : {0, 1, 7, 100'003})
      exercise<float>(world.communicator(), count);
  }));
}

TEST_CASE("groups: a rank that dies ends those who share a group with it, on every node") {
  const std::string rendezvous = test::free_address();
  const auto outcomes = test::run_processes(4, [&](int rank) {
    test::set_rank_environment(rank, 4, rendezvous, 2);
    const World world = World::join({.timeout = dist::Seconds(20)});
    const Tensor data = Tensor::zeros({50'000});
    for (int i = 0; i < 100'000; ++i) {
      if (rank == 3 && i == 20) ::raise(SIGKILL);
      world.communicator().all_reduce(data, "bucket").wait();
    }
  });
  for (int r = 0; r < 3; ++r) {
    const test::Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    CAPTURE(outcome.message);
    CHECK(outcome.kind == "peer");
    CHECK(outcome.seconds < 15);
  }
}

TEST_CASE("groups: ranks that ask for different ones are told so") {
  CHECK_THROWS_WITH_AS(
      run_threads(
          3, {},
          [](World& world) {
            (void)world.new_group(world.rank() == 2 ? std::vector{0, 2} : std::vector{0, 1});
          }),
      doctest::Contains(
          "[new_group] the ranks differ: member 2 on rank 2, member 1 on ranks 0, 1: rank 2 is in "
          "the minority"),
      StateError);
  CHECK_THROWS_WITH_AS(run_threads(2, {},
                                   [](World& world) {
                                     (void)world.new_group({0, 2});
                                   }),
                       "[new_group] there is no rank 2 in a world of 2", UsageError);
}

TEST_CASE("groups: data parallelism within each of two groups") {
  run_threads(4, {}, [](World& world) {
    const auto group = world.split(world.rank() / 2);
    const Parameter w(Tensor::full({3}, world.rank()), "w");
    const dist::DistributedDataParallel ddp({w}, {}, *group);
    expect(w.value().data<float>()[0] == static_cast<float>(world.rank() / 2 * 2),
           "the group's first rank's parameters");
  });
}

}  // namespace
}  // namespace lockstep
