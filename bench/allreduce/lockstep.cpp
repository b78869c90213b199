// Lockstep's ranks in `bench allreduce`: processes or threads of a World.

#include <fmt/format.h>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/world/world.h"
#include "lockstep/launch/launch.h"
#include "rank.h"

namespace bench {
namespace {

using namespace lockstep;

class LockstepEngine final : public Engine {
 public:
  // The memory is what gradients lie in: that of the communicator.
  LockstepEngine(const World& world, std::int64_t capacity, Device device)
      : communicator_(world.communicator()),
        memory_(communicator_.allocate(capacity, DType::f32, device)) {
    check<UsageError>(memory_.device() == device, "this communicator does not reach {}",
                      device.to_string());
  }

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  void put(std::int64_t begin, std::span<const float> values) override {
    const auto count = static_cast<std::int64_t>(values.size());
    if (memory_.device() == Device{}) return store(memory_.span<float>(), begin, values);
    const Tensor host = Tensor::empty({count});
    store(host.span<float>(), 0, values);
    memory_.slice(begin, begin + count).copy_from(host);
    finish();
  }
  void get(std::int64_t begin, std::span<float> values) override {
    const auto count = static_cast<std::int64_t>(values.size());
    load(memory_.slice(begin, begin + count).to(Device{}).span<float>(), 0, values);
  }
  void finish() override { Stream::current(memory_.device()).synchronize(); }
  void all_reduce(std::int64_t count) override {
    if (part_.numel() != count) part_ = memory_.slice(0, count);
    communicator_.all_reduce(part_, "bench").wait();
  }
  void barrier() override { communicator_.barrier("bench").wait(); }

 private:
  dist::Communicator& communicator_;
  Tensor memory_, part_;
};

}  // namespace

int run_lockstep(const Place& place, int argc, const char* const* argv) {
  const bool threads = place.transport == "threads";
  const auto environment = dist::read_environment();
  if (!threads && !environment && place.ranks > 1)
    return launch::run_this_program({.ranks = place.ranks}, argc, argv);
  const bool on_gpu = place.transport == "ipc" || place.comm.starts_with("nccl");
  const JoinOptions options{.comm = place.comm, .transport = place.transport};
  const auto run = [&](const World& world) {
    LockstepEngine engine(world, place.capacity,
                          on_gpu ? gpu::default_device(world.local_rank()) : Device{});
    serve(engine, fmt::format("Lockstep {} {}", world.transport(), place.comm), place.folder);
  };
  try {
    check<UsageError>(!on_gpu || gpu::default_device() != Device{}, "there is no GPU here");
    if (threads)
      run_threads(place.ranks, options, run);
    else
      run(World::join(options));
  } catch (const UsageError& error) {
    if (!environment || environment->rank == 0) fmt::print("cannot {}\n", error.what());
  }
  return 0;
}

}  // namespace bench
