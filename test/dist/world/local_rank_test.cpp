// Ranks whose launcher does not say which of them share a machine (Kubeflow's four variables).

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "lockstep/dist/world/world.h"
#include "support/expect.h"
#include "support/forked_ranks.h"

namespace lockstep {
namespace {

using test::expect;

TEST_CASE("local ranks are found when the ranks meet, and they talk by TCP") {
  const std::string host = test::own_host();
  const std::string port = std::to_string(test::free_port());
  test::check_all_well(test::run_processes(3, [&](int rank) {
    for (const auto& [name, value] :
         {std::pair("RANK", std::to_string(rank)), std::pair("WORLD_SIZE", std::string("3")),
          std::pair("MASTER_ADDR", host), std::pair("MASTER_PORT", port)})
      ::setenv(name, value.c_str(), 1);
    World world = World::join();
    expect(world.rank() == rank && world.size() == 3, "rank {} of {}", world.rank(), world.size());
    // Two of them on one GPU, in silence, is what must not be.
    expect(world.local_rank() == rank, "local rank {}", world.local_rank());
    expect(world.local_size() == 3, "local size {}", world.local_size());
    expect(world.transport() == "tcp", "transport {}", world.transport());
    const Tensor x = Tensor::full({7}, rank + 1);
    world.communicator().all_reduce(x, "x").wait();
    expect(x.item({6}) == 6, "sum {}", x.item({6}));
  }));
}

}  // namespace
}  // namespace lockstep
