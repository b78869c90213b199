// A steady training step asks the heap for nothing: tensors come from the caching allocator, nodes
// of the tape from its chunks, messages from memory set aside. Every operator new of this program
// is counted; what a matrix product's library allocates for itself does not count.

#include <doctest/doctest.h>

#include "heap_count.h"
#include "lockstep/core/memory.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

/// What `steps` steps cost after a warm-up: operator new, and requests to the operating system.
struct Cost {
  long heap = 0;
  std::uint64_t system = 0;
};

Cost cost_of_steps(int ranks, const char* comm, bool adam) {
  Cost cost;
  run_threads(ranks, {.comm = comm}, [&](World& world) {
    manual_seed(0);
    nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 64), nn::ReLU(),
                         nn::Linear(64, 10)};
    std::unique_ptr<optim::Optimizer> optimizer;
    if (adam)
      optimizer = std::make_unique<optim::Adam>(model.parameters(), optim::AdamOptions{});
    else
      optimizer = std::make_unique<optim::SGD>(model.parameters(),
                                               optim::SGD::Options{.lr = 0.01, .momentum = 0.9});
    const dist::DistributedDataParallel ddp(model.parameters(), {}, world, {.bucket_cap_mb = 0.02});
    data::Dataset set{.images = Tensor::full({512, 64}, 0.5),
                      .labels = Tensor::zeros({512}, DType::i64),
                      .records = Tensor::zeros({512}, DType::i64),
                      .source = ""};
    const data::Loader loader(set, {.batch = 32, .shuffle = true}, world);
    const auto epoch = [&] {
      for (const data::Batch& batch : loader) {
        Tape tape;
        const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
        tape.backward(loss, batch.weight);
        optimizer->step();
        optimizer->zero_grad();
      }
    };
    epoch();
    epoch();
    world.communicator().barrier("before").wait();
    const long heap = heap_allocations();
    const auto system = memory::statistics().system_allocations;
    world.communicator().barrier("start").wait();
    epoch();
    world.communicator().barrier("end").wait();
    if (world.rank() == 0)
      cost = {heap_allocations() - heap, memory::statistics().system_allocations - system};
    world.communicator().barrier("after").wait();
  });
  return cost;
}

}  // namespace

TEST_CASE("the counter counts") {
  const long before = heap_allocations();
  ::operator delete(::operator new(3));  // a new-expression might be left out
  CHECK(heap_allocations() == before + 1);
}

TEST_CASE("a steady step allocates nothing") {
  for (const int ranks : {1, 2, 3})
    for (const char* comm : {"direct", "ring"})
      for (const bool adam : {false, true}) {
        INFO(ranks, " ranks, ", comm, ", adam ", adam);
        const Cost cost = cost_of_steps(ranks, comm, adam);
        CHECK(cost.heap == 0);
        // Ranks as threads share one cache: their peaks may coincide later than in the warm-up.
        if (ranks == 1 && memory::caching) CHECK(cost.system == 0);
      }
}

TEST_CASE("gradient memory is one copy of the parameters and some alignment") {
  run_threads(2, {}, [](World& world) {
    nn::Sequential model{nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 256), nn::ReLU(),
                         nn::Linear(256, 10)};
    std::size_t bytes = 0;
    for (const Parameter& p : model.parameters()) bytes += p.value().bytes();
    const dist::DistributedDataParallel ddp(model.parameters(), {}, world, {.bucket_cap_mb = 0.5});
    check<Error>(ddp.reducer().bytes() < bytes + bytes / 20, "{} bytes of buckets for {}",
                 ddp.reducer().bytes(), bytes);
    for (const Parameter& p : model.parameters()) {
      const Tensor& slot = p.gradient_slot();
      check<Error>(reinterpret_cast<std::uintptr_t>(slot.raw()) % 64 == 0, "{} aligned", p.name());
    }
  });
}
