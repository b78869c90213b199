// The conformance suite of all communicators (dist/conformance.h), between GPUs.

#include "dist/collectives/conformance.h"

#include <doctest/doctest.h>

#include "cuda/engines.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/world/world.h"

namespace lockstep {
namespace {

TEST_CASE("GPU communicators: conformance" * doctest::test_suite("not-races")) {
  for (const test::GpuEngine& engine : test::gpu_engines)
    for (const int size : {1, 2, 3, 5, 8}) {
      if (!test::enough_gpus(size, engine)) continue;
      CAPTURE(engine.comm);
      CAPTURE(engine.transport);
      CAPTURE(size);
      run_threads(size, test::options_of(engine, 60), [](World& world) {
        const Device device{*gpu::kind(), world.rank() % gpu::count()};
        dist::testing::exercise_everything(world.communicator(), device);
        dist::testing::exercise_everything(world.communicator());  // on the host
      });
    }
}

}  // namespace
}  // namespace lockstep
