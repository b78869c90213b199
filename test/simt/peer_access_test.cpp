// GPUs that do not reach each other's memory: what was left to choose takes the host's way, what
// was asked for is refused on every rank. (With "auto", ranks that have a GPU each would take
// NCCL.)

#include <doctest/doctest.h>

#include <optional>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/world/world.h"
#include "lockstep/simt/simt.h"
#include "support/forked_ranks.h"

namespace lockstep {
namespace {

using test::contains;
using test::expect;

struct WithoutPeerAccess {
  WithoutPeerAccess() {
    simt::Config config = before;
    config.peer_access = false;
    simt::configure(config);
  }
  ~WithoutPeerAccess() { simt::configure(before); }
  simt::Config before = simt::config();
};

Device own_gpu(const World& world) { return {*gpu::kind(), world.rank()}; }

void expect_the_hosts_way(const World& world) {
  dist::Communicator& comm = world.communicator();
  const Tensor memory = comm.allocate(10, DType::f32, own_gpu(world));
  expect(memory.device() == Device{}, "allocated on {}", memory.device().to_string());
  expect(!contains(std::string(comm.algorithm(40)), "ipc"), "takes {}", comm.algorithm(40));
  memory.fill(world.rank() + 1);
  comm.all_reduce(memory, "sum").wait();
  expect(memory.to_vector<float>()[9] == 6, "the sum is {}", memory.to_vector<float>()[9]);
}

void expect_a_refusal(const World& world, int first) {
  try {
    world.communicator().allocate(10, DType::f32, own_gpu(world));
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    expect(text.starts_with(fmt::format("[ipc] rank {}: ", first)), "it says {}", text);
    return;
  }
  expect(false, "rank {} was not refused", world.rank());
}

TEST_CASE("GPUs that do not reach each other: left to choose, the host's way is taken") {
  const WithoutPeerAccess without;
  run_threads(3, {.comm = "ring"}, expect_the_hosts_way);
  run_threads(2, {}, [](World& world) {  // one GPU reaches itself
    const Device shared{*gpu::kind(), 0};
    const Tensor memory = world.communicator().allocate(10, DType::f32, shared);
    expect(memory.device() == shared, "allocated on {}", memory.device().to_string());
  });
}

TEST_CASE("GPUs that do not reach each other: ipc is refused on every rank") {
  const WithoutPeerAccess without;
  run_threads(3, {.transport = "ipc"}, [](World& world) { expect_a_refusal(world, 0); });
}

TEST_CASE("GPUs that do not reach each other: if one of three processes finds it so, all do") {
  for (const bool asked : {false, true}) {
    const test::TemporaryFolder folder;
    test::check_all_well(test::run_processes(3, [&](int rank) {
      std::optional<WithoutPeerAccess> without;
      if (rank == 1) without.emplace();
      test::set_rank_environment(rank, 3, "unix:" + folder / "store");
      const World world = World::join({.comm = "ring", .transport = asked ? "ipc" : ""});
      asked ? expect_a_refusal(world, 1) : expect_the_hosts_way(world);
    }));
  }
}

}  // namespace
}  // namespace lockstep
