// GPUs that do not reach each other's memory: what was left to choose takes the host's way, what
// was asked for is refused on every rank. (With "auto", ranks that have a GPU each would take
// NCCL.)

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <optional>

#include "lockstep/core/cuda/stream_pool.h"
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
    config.lazy_loading = false;  // as run_threads sees to, if it is early enough
    simt::configure(config);
  }
  ~WithoutPeerAccess() { simt::configure(before); }
  simt::Config before = simt::config();
};

/// As the environment could have said before CUDA was first used.
struct Loading {
  explicit Loading(bool lazy) {
    simt::Config config = before;
    config.lazy_loading = lazy;
    simt::configure(config);
  }
  ~Loading() { simt::configure(before); }
  simt::Config before = simt::config();
};

/// CUDA_DEVICE_MAX_CONNECTIONS, which has a value as soon as ranks are threads.
struct Queues {
  explicit Queues(int count) { set(std::to_string(count)); }
  ~Queues() { set("32"); }
  static void set(const std::string& count) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", count.c_str(), 1);
  }
};

Device own_gpu(const World& world) { return {*gpu::kind(), world.rank()}; }

void expect_the_hosts_way(const World& world, double sum) {
  dist::Communicator& comm = world.communicator();
  const Tensor memory = comm.allocate(10, DType::f32, own_gpu(world));
  expect(memory.device() == Device{}, "allocated on {}", memory.device().to_string());
  expect(!contains(std::string(comm.algorithm(40)), "ipc"), "takes {}", comm.algorithm(40));
  memory.fill(world.rank() + 1);
  comm.all_reduce(memory, "sum").wait();
  expect(memory.to_vector<float>()[9] == static_cast<float>(sum), "the sum is {}",
         memory.to_vector<float>()[9]);
}

void expect_a_refusal(const World& world, int first, const std::string& why = "") {
  try {
    world.communicator().allocate(10, DType::f32, own_gpu(world));
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    expect(text.starts_with(fmt::format("[ipc] rank {}: {}", first, why)), "it says {}", text);
    return;
  }
  expect(false, "rank {} was not refused", world.rank());
}

TEST_CASE("GPUs that do not reach each other: left to choose, the host's way is taken") {
  const WithoutPeerAccess without;
  run_threads(3, {.comm = "ring"}, [](World& world) { expect_the_hosts_way(world, 6); });
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

TEST_CASE("GPUs that do not reach each other: memory that can be mapped, and no more") {
  for (const bool asked_for : {false, true}) {
    CAPTURE(asked_for);
    const test::TemporaryFolder folder;
    test::check_all_well(test::run_processes(2, [&](int rank) {
      simt::Config config = simt::config();
      config.peer_access_lost = true;
      simt::configure(config);
      test::set_rank_environment(rank, 2, "unix:" + folder / "store");
      const World world = World::join(
          {.comm = "ring", .transport = asked_for ? "ipc" : "", .timeout = dist::Seconds(5)});
      if (!asked_for) return expect_the_hosts_way(world, 3);
      expect_a_refusal(world, 0, "the memory of rank 1's GPU can be mapped, but not ");
    }));
  }
}

TEST_CASE("ranks that are threads of one GPU: ipc wants kernels that are loaded early") {
  {
    const Loading early(false);
    run_threads(2, {.transport = "ipc"}, [](World& world) {
      (void)world.communicator().allocate(10, DType::f32, {*gpu::kind(), 0});
    });
  }
  const Loading late(true);
  run_threads(2, {.transport = "ipc"}, [](World& world) {  // a GPU each
    (void)world.communicator().allocate(10, DType::f32, own_gpu(world));
  });
  CHECK_THROWS_WITH_AS(
      run_threads(2, {.transport = "ipc"},
                  [](World& world) {
                    (void)world.communicator().allocate(10, DType::f32, {*gpu::kind(), 0});
                  }),
      doctest::Contains("need CUDA_MODULE_LOADING=EAGER in the environment"), DeviceError);
}

TEST_CASE("ranks that are threads of one GPU: as many as have a hardware queue for each stream") {
  const Loading early(false);
  const Device shared{*gpu::kind(), 0};
  const auto sum_on = [&](std::optional<Device> device) {
    return [device](World& world) {
      dist::Communicator& communicator = world.communicator();
      const Tensor sum = communicator.allocate(10, DType::f32, Device{*gpu::kind(), 0});
      if (device) expect(sum.device() == *device, "allocated on {}", sum.device().to_string());
      sum.fill(world.rank() + 1);
      communicator.all_reduce(sum, "sum").wait();
      expect(sum.to_vector<float>()[9] == 6, "the sum is {}", sum.to_vector<float>()[9]);
    };
  };
  const int before = cuda::streams_in_use(0);  // this thread's
  {
    const Queues enough(before + 9);
    run_threads(3, {.transport = "ipc"}, sum_on(shared));
  }
  const Queues few(before + 8);
  CHECK_THROWS_WITH_AS(run_threads(3, {.transport = "ipc"}, sum_on(shared)),
                       doctest::Contains(fmt::format("use {} streams of GPU 0, which has {} "
                                                     "hardware queues",
                                                     before + 9, before + 8)
                                             .c_str()),
                       DeviceError);
  run_threads(3, {}, sum_on(Device{}));  // the host's way
}

TEST_CASE("ranks that are threads of one GPU: a call that may wait for it, too late, is reported") {
  const simt::Config before = simt::config();
  simt::Config impatient = before;
  impatient.patience = std::chrono::milliseconds(300);
  impatient.lazy_loading = false;
  impatient.cautious = true;
  impatient.connections = 32;
  simt::configure(impatient);
  std::string report;
  const auto train = [&report](World& world) -> void {
    dist::Communicator& communicator = world.communicator();
    const Tensor sum = communicator.allocate(10, DType::f32, {*gpu::kind(), 0});
    communicator.all_reduce(sum, "first").finish();
    if (world.rank() == 0) return communicator.all_reduce(sum, "second").finish();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    void* data = nullptr;
    if (cudaMallocHost(&data, 8) != cudaSuccess)
      report = cudaGetErrorString(cudaErrorLaunchFailure);
    communicator.all_reduce(sum, "second").finish();
  };
  CHECK_THROWS(run_threads(2, {.transport = "ipc"}, train));
  INFO(report);
  CHECK(report.starts_with(
      "deadlock: cudaHostAlloc may wait for all work of its device, and stream"));
  simt::reset();
  simt::configure(before);
}

TEST_CASE("peer memory: what others may have mapped is kept for the next region, not freed") {
  const test::TemporaryFolder folder;
  test::check_all_well(test::run_processes(2, [&](int rank) {
    const auto in_use = [] {
      std::size_t available = 0, total = 0;
      expect(cudaMemGetInfo(&available, &total) == cudaSuccess, "no figures");
      return total - available;
    };
    const auto use_region_of = [&](std::int64_t count, int number) {
      test::set_rank_environment(rank, 2, fmt::format("unix:{}{}", folder / "store", number));
      const World world = World::join({.transport = "ipc"});
      const Tensor memory =
          world.communicator().allocate(count, DType::f32, Device{*gpu::kind(), 0});
      for (const float value : memory.to_vector<float>()) expect(value == 0, "it has {}", value);
      memory.fill(7);
    };
    use_region_of(30'000, 0);
    const std::size_t kept = in_use();
    expect(kept >= 120'000, "{} bytes are in use", kept);
    for (const int number : {1, 2}) use_region_of(30'000 - 4'000 * number, number);
    expect(in_use() == kept, "{} bytes are in use, {} before", in_use(), kept);
    use_region_of(13'000, 3);  // twice as much would be wasted
    expect(in_use() >= kept + 52'000, "{} bytes are in use, {} before", in_use(), kept);
  }));
}

TEST_CASE("GPUs that do not reach each other: if one of three processes finds it so, all do") {
  for (const bool asked : {false, true}) {
    const test::TemporaryFolder folder;
    test::check_all_well(test::run_processes(3, [&](int rank) {
      std::optional<WithoutPeerAccess> without;
      if (rank == 1) without.emplace();
      test::set_rank_environment(rank, 3, "unix:" + folder / "store");
      const World world = World::join({.comm = "ring", .transport = asked ? "ipc" : ""});
      asked ? expect_a_refusal(world, 1) : expect_the_hosts_way(world, 6);
    }));
  }
}

}  // namespace
}  // namespace lockstep
