// What the library has made of CUDA's and NCCL's things is ended when its owner ends. Each program
// runs several times. What a run has left may be kept for the next (streams, events and page-locked
// memory are used again); a leak grows with every run.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "cuda/engines.h"
#include "dist/collectives/exercise.h"
#include "dist/collectives/teardown.h"
#include "lockstep/lockstep.h"
#include "lockstep/simt/simt.h"

namespace lockstep::test::leaks {
namespace {

const Device gpu0{Device::Kind::sim, 0};

/// "3 events"; empty if there are no more than before.
std::string more(const std::map<std::string, std::size_t>& before) {
  std::string text;
  for (const auto& [kind, count] : simt::living()) {
    const auto then = before.find(kind);
    const std::size_t old = then == before.end() ? 0 : then->second;
    if (count > old) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count - old, kind);
  }
  return text;
}

/// What each of four runs after the first leaves; empty if one has left nothing.
std::string left_by(const std::function<void()>& program) {
  program();
  std::string left;
  bool clean = false;
  for (int i = 0; i < 4; ++i) {  // on all ranks as often
    const auto before = simt::living();
    program();
    left = more(before);
    clean = clean || left.empty();
  }
  return clean ? "" : left;
}

Tensor ones(Device device) { return Tensor::ones({300}, DType::f32, device); }

void train(World& world, Device device, bool recorded) {
  nn::Sequential model{nn::Linear(6, 5), nn::ReLU(), nn::Linear(5, 3)};
  model.to(device);
  optim::Adam optimizer(model.parameters(), {.lr = 0.01});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  const Tensor x = Tensor::ones({4, 6}, DType::f32, device);
  const Tensor y = Tensor::zeros({4}, DType::i64, device);
  Tensor last;
  const auto step = [&] {
    Tape tape;
    const Tensor loss = nn::cross_entropy(model(x), y);
    tape.backward(loss);
    optimizer.step();
    ddp.zero_grad();
    last = loss.detach();
  };
  StepGraph graph(step, device);
  for (int i = 0; i < 5; ++i) recorded ? (void)graph() : step();
  (void)last.item();
}

}  // namespace

// First: a process in which threads have been forks no ranks.
TEST_CASE("leaks: worlds of processes, with each engine") {
  for (const GpuEngine& engine : gpu_engines) {
    CAPTURE(engine.comm);
    CAPTURE(engine.transport);
    const TemporaryFolder folder;
    const auto outcomes = run_processes(
        2,
        [&](int rank) {
          int number = 0;
          const std::string left = left_by([&] {
            set_rank_environment(rank, 2, "unix:" + folder / fmt::format("store{}", number++));
            World world = World::join(options_of(engine, 30));
            const Device own{Device::Kind::sim, world.rank()};
            dist::testing::exercise<float>(world.communicator(), 1000, own);
            train(world, own, true);
          });
          check<StateError>(left.empty(), "left: {}", left);
        },
        60);
    for (const Outcome& outcome : outcomes) {
      INFO(outcome.kind, " ", outcome.message);
      CHECK(outcome.well());
    }
  }
}

TEST_CASE("leaks: streams, events, tensors, pinned memory, threads") {
  CHECK(left_by([] {
          const Stream stream = Stream::create(gpu0);
          const Event event(gpu0);
          {
            const StreamGuard guard(stream);
            (void)ones(gpu0).item({3});
            event.record(stream);
          }
          Stream::current(gpu0).wait(event);
          (void)gpu::allocate_pinned(1000);
          std::thread([] { (void)ones(gpu0).to(Device{}); }).join();
          (void)ones(Device{}).to(gpu0);
        }) == "");
}

TEST_CASE("leaks: recorded steps, also such that fail") {
  CHECK(left_by([] {
          Tensor x = ones(gpu0), y;
          StepGraph good([&] { y = x * 2.0; }, gpu0);
          for (int i = 0; i < 4; ++i) good();
          Tensor released = ones(gpu0);  // which its recording then keeps
          StepGraph keeper([&] { y = released * 2.0; }, gpu0);
          for (int i = 0; i < 4; ++i) keeper();
          released = Tensor();
          StepGraph reads([&] { (void)(x * 2.0).item({0}); }, gpu0);
          StepGraph throws(
              [&] {
                y = x * 3.0;
                throw std::runtime_error("mine");
              },
              gpu0);
          StepGraph keeps([&] { static_cast<void>(x += y); }, gpu0);
          for (StepGraph* graph : {&reads, &throws, &keeps})
            for (int i = 0; i < 3; ++i) {
              try {
                (*graph)();
              } catch (const std::exception&) {
              }
            }
        }) == "");
}

TEST_CASE("leaks: worlds of threads, with each engine") {
  for (const GpuEngine& engine : gpu_engines) {
    CAPTURE(engine.comm);
    CAPTURE(engine.transport);
    for (const bool recorded : {false, true})
      CHECK(left_by([&] {
              run_threads(2, options_of(engine, 30), [&](World& world) {
                const Device own{Device::Kind::sim, world.rank()};
                dist::testing::exercise<float>(world.communicator(), 1000, own);
                train(world, own, recorded);
              });
            }) == "");
    // A rank fails: what was under way is aborted.
    CHECK(left_by([&] {
            try {
              run_threads(2, options_of(engine, 30), [&](World& world) {
                const Device own{Device::Kind::sim, world.rank()};
                train(world, own, true);
                if (world.rank() == 1) throw std::runtime_error("mine");
                world.communicator().all_reduce(ones(own), "alone").wait();
              });
            } catch (const std::exception&) {
            }
          }) == "");
  }
}

TEST_CASE("leaks: memory of NCCL's that is given back") {
  run_threads(2, {.comm = "nccl"}, [&](World& world) {
    const Device own{Device::Kind::sim, world.rank()};
    bool clean = false;
    std::map<std::string, std::size_t> before;
    for (int i = 0; i < 5; ++i) {
      const Tensor memory = world.communicator().allocate(100, DType::f32, own);
      world.communicator().all_reduce(memory, "sum").wait();
      Stream::current(own).synchronize();
      world.communicator().barrier("both have counted what both have made").wait();
      clean = clean || (i > 0 && more(before).find("NCCL") == std::string::npos);
      before = simt::living();
      world.communicator().barrier("go on").wait();
    }
    CHECK(clean);
  });
}

}  // namespace lockstep::test::leaks
