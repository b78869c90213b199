// The conformance suite of all communicators (dist/conformance.h), between GPUs.

#include "dist/collectives/conformance.h"

#include <doctest/doctest.h>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/world/world.h"

namespace lockstep {
namespace {

TEST_CASE("GPU communicators: conformance") {
  struct Engine {
    std::string comm, transport;
  };
  for (const Engine& engine : {Engine{"auto", "ipc"}, Engine{"ring", "ipc"}, Engine{"nccl", ""},
                               Engine{"nccl-direct", ""}})
    for (const int size : {1, 2, 3, 5, 8}) {
      if (engine.transport.empty() && size > gpu::count()) continue;
      CAPTURE(engine.comm);
      CAPTURE(engine.transport);
      CAPTURE(size);
      run_threads(size, {.comm = engine.comm, .transport = engine.transport}, [](World& world) {
        const Device device{*gpu::kind(), world.rank() % gpu::count()};
        dist::testing::exercise_everything(world.communicator(), device);
        dist::testing::exercise_everything(world.communicator());  // on the host
      });
    }
}

}  // namespace
}  // namespace lockstep
