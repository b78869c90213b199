// What a step reads on the host of the library's state, by whichever function: it is recorded anew
// when that changes.

#include <bit>

#include "host_programs.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/nn/batch_norm.h"

namespace lockstep::test::getters {
namespace {

using host_programs::check_same;
using host_programs::full;
using host_programs::Program;
using host_programs::Trained;

TEST_CASE("recorded steps: tf32 and the library of products, when they change") {
  const kernels::GemmLibrary first = kernels::gemm_library();
  manual_seed(3);
  nn::Linear model(16, 16);
  model.to(test_device());
  const Tensor x = Tensor::randn({16, 16}).to(test_device());
  const Tensor y = Tensor::empty({16, 16}, DType::f32, test_device());
  StepGraph graph([&] { y.copy_from(model(x)); }, test_device());
  std::vector<bool> replayed;
  for (int i = 0; i < 10; ++i) {
    if (i == 3) kernels::allow_tf32(true);
    if (i == 6) kernels::set_gemm_library(kernels::GemmLibrary::handwritten);
    if (i == 8) kernels::allow_tf32(false);
    replayed.push_back(graph());
  }
  kernels::set_gemm_library(first);
  std::vector<bool> expected(10, true);
  expected[0] = expected[3] = expected[8] = false;
  if (first != kernels::GemmLibrary::handwritten) expected[6] = false;
  if (!on_cpu()) CHECK(replayed == expected);
}

TEST_CASE("recorded steps: the lanes of another scope") {
  const auto train = [](bool recorded) {
    manual_seed(3);
    nn::Linear model(5, 3);
    model.to(test_device());
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    const Tensor x = of_samples(Tensor::randn({8, 5}).to(test_device()));
    const Tensor y = of_samples(Tensor::zeros({8}, DType::i64, test_device()));
    const auto step = [&] {
      Tape tape;
      tape.backward(nn::cross_entropy(model(x), y), Weight{8, 8});
      sgd.step();
      sgd.zero_grad();
    };
    StepGraph graph(step, test_device());
    int replays = 0;
    for (int i = 0; i < 12; ++i) {
      const LaneScope scope(std::make_shared<Lanes>(8, i < 4 ? 8 : 1, Shard{}));
      recorded ? (void)(replays += graph()) : step();
    }
    if (recorded && !on_cpu()) CHECK(replays == 10);
    return parameter_digest(model.parameters());
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("recorded steps: numbers that are read by their getters") {
  struct State : Trained {
    optim::GradScaler scaler{{.scale = 8, .growth_interval = 3}};
    optim::Schedule schedule{sgd, [](std::int64_t i) { return i < 4 ? 1.0 : 0.5; }};
  };
  check_same([] {
    const auto s = std::make_shared<State>();
    return Program{[s] {
                     s->sgd.zero_grad();
                     Tape tape;
                     tape.backward(mean(mul(mul(s->w, s->x), s->w)) * s->scaler.scale());
                   },
                   [](int) {},
                   [s](std::vector<float>& seen) {
                     (void)s->scaler.step(s->sgd);
                     s->scaler.update();
                     s->look(seen);
                   }};
  });
  check_same([] {
    const auto s = std::make_shared<State>();
    return Program{
        [s] { s->loss.copy_from(sum(s->x) * s->sgd.lr()); },
        [s](int i) {
          if (i == 4) s->sgd.set_lr(0.5);
        },
        [s](std::vector<float>& seen) { seen.push_back(s->loss.to_vector<float>()[0]); }};
  });
  check_same(
      [] {
        const auto s = std::make_shared<State>();
        return Program{
            [s] { s->loss.copy_from(sum(s->x) * static_cast<double>(s->schedule.steps())); },
            [s](int i) {
              if (i % 4 == 3) s->schedule.step();
            },
            [s](std::vector<float>& seen) { seen.push_back(s->loss.to_vector<float>()[0]); }};
      },
      4);
}

/// An optimizer that a program has written.
struct Plain final : optim::Optimizer {
  explicit Plain(const std::vector<Parameter>& parameters) : Optimizer(parameters) {}
  double rate = 0.125;
  Tensor sum = full(0);
  std::vector<StateTensor> state_of(const Parameter&) const override { return {{"sum", sum}}; }
  std::uint64_t options_digest() const override { return std::bit_cast<std::uint64_t>(rate); }
  void update() override {
    for (const Parameter& p : all()) {
      if (!takes_part(p)) continue;
      sum.copy_from(add(sum, p.gradient()));
      p.value().copy_from(sub(p.value(), sum * rate));
    }
  }
};

TEST_CASE("recorded steps: an optimizer that somebody else has written") {
  check_same(
      [] {
        struct State {
          Parameter w{full(1), "w"};
          Plain own{{w}};
        };
        const auto s = std::make_shared<State>();
        return Program{
            [s] {
              Tape tape;
              tape.backward(sum(mul(s->w, s->w)));
              s->own.step();
              s->own.zero_grad();
            },
            [s](int i) {
              if (i == 4) s->own.rate = 0.0625;
              if (i == 7) s->own.sum = full(0.5);
            },
            [s](std::vector<float>& seen) { seen.push_back(s->w.value().to_vector<float>()[0]); }};
      },
      5);
}

TEST_CASE("recorded steps: a gradient's memory that is placed elsewhere") {
  check_same([] {
    const auto s = std::make_shared<Trained>();
    return Program{[s] {
                     Tape tape;
                     tape.backward(sum(mul(s->w, s->x)));
                     s->sgd.step();
                     s->sgd.zero_grad();
                   },
                   [s](int i) {
                     if (i == 4) s->w.place_gradient(full(7));
                     s->x.fill(i);
                   },
                   [s](std::vector<float>& seen) {
                     seen.push_back(s->w.gradient_slot().to_vector<float>()[0]);
                   }};
  });
}

data::Batch batch(int i) {
  data::Batch b;
  b.x = full(i + 1);
  b.fields.set("x", b.x);
  b.weight = {3, 3};
  b.step = i;
  b.position = 3 * i;
  return b;
}

using Step = std::function<Tensor(const data::Batch&)>;

/// The results of RecordedSteps, or of plain steps.
std::vector<float> results(const Step& step, bool recorded,
                           const std::function<data::Batch(int)>& batch_of = batch) {
  nn::RecordedSteps steps(step);
  std::vector<float> all;
  for (int i = 0; i < 6; ++i)
    all.push_back(static_cast<float>((recorded ? steps(batch_of(i)) : step(batch_of(i))).item()));
  return all;
}

TEST_CASE("recorded steps: the number and the position of a batch are refused") {
  const Step by_step = [](const data::Batch& b) { return sum(b.x) * static_cast<double>(b.step); };
  if (on_cpu()) return;
  nn::RecordedSteps steps(by_step);
  CHECK(steps(batch(1)).item() == 6);
  CHECK_THROWS_WITH_AS(steps(batch(2)),
                       doctest::Contains("[batch.step or position] in a step that is recorded"),
                       StateError);
  CHECK(steps(batch(3)).item() == 36);  // as it is: of its own batch
  nn::RecordedSteps positions(
      [](const data::Batch& b) { return sum(b.x) * static_cast<double>(b.position); });
  CHECK(positions(batch(1)).item() == 18);
  CHECK_THROWS_WITH_AS(positions(batch(2)),
                       doctest::Contains("[batch.step or position] in a step that is recorded"),
                       StateError);
}

TEST_CASE("recorded steps: a batch's tensor that the function keeps, or that lies on the cpu") {
  const auto keep = [](bool recorded) {
    std::vector<Tensor> kept;
    std::vector<float> seen = results(
        [&](const data::Batch& b) {
          kept.push_back(b.x);
          return sum(mul(b.x, b.x));
        },
        recorded);
    for (const Tensor& t : kept) seen.push_back(t.to_vector<float>()[0]);
    return seen;
  };
  CHECK(keep(true) == keep(false));
  const auto with_ids = [](int i) {
    data::Batch b = batch(i);
    b.fields.set("ids", Tensor::full({1}, i));
    return b;
  };
  const Step by_id = [](const data::Batch& b) { return sum(b.x) * b["ids"].item(); };
  CHECK(results(by_id, true, with_ids) == results(by_id, false, with_ids));
}

// ---- several ranks ----

constexpr auto two_ranks = [](const std::function<void(World&)>& body) {
  run_threads(2, {.transport = "ipc"}, body);
};

TEST_CASE("GPU DDP: no_sync around a step that was recorded without") {
  if (on_cpu()) return;
  const auto train = [](bool recorded) {
    std::vector<float> seen;
    two_ranks([&](World& world) {
      const Tensor x = full(1 + world.rank());
      const Parameter w(full(2), "w");
      dist::DistributedDataParallel ddp({w}, {}, world);
      const auto step = [&] {
        w.zero_grad();
        Tape tape;
        tape.backward(sum(mul(w, x)), Weight{1, 2});
      };
      StepGraph graph(step, test_device());
      for (int i = 0; i < 4; ++i) recorded ? (void)graph() : step();
      const dist::NoSync pause = ddp.no_sync();
      recorded ? (void)graph() : step();
      if (world.rank() == 0) seen = w.gradient().to_vector<float>();
    });
    return seen;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("GPU DDP: made over parameters whose step is recorded already") {
  if (on_cpu()) return;
  const auto train = [](bool recorded) {
    std::vector<float> seen;
    two_ranks([&](World& world) {
      const Tensor x = full(1 + world.rank());
      const Parameter w(full(2), "w");
      const Tensor result = full(0);
      const auto step = [&] {
        Tape tape;
        tape.backward(sum(mul(w, x)), Weight{1, 2});
        result.copy_from(w.gradient());
        w.zero_grad();
      };
      StepGraph graph(step, test_device());
      const auto take = [&] { recorded ? (void)graph() : step(); };
      for (int i = 0; i < 3; ++i) take();
      const dist::DistributedDataParallel ddp({w}, {}, world);
      for (int i = 0; i < 3; ++i) take();
      if (world.rank() == 0) seen = result.to_vector<float>();
    });
    return seen;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("GPU DDP: a BatchNorm that is synchronized between two replays") {
  if (on_cpu()) return;
  const auto train = [](World& world) {
    nn::BatchNorm norm(3, {.track_running_stats = false});
    norm.to(test_device());
    const Tensor x = Tensor::randn({4, 3}).to(test_device());
    const Tensor y = Tensor::empty({4, 3}, DType::f32, test_device());
    StepGraph graph([&] { y.copy_from(norm(x).detach()); }, test_device());
    for (int i = 0; i < 4; ++i) CHECK(graph() == (i > 0));
    nn::convert_sync_batchnorm(norm, world);
    CHECK_FALSE(graph());  // as it is
    CHECK_THROWS_WITH_AS(graph(), doctest::Contains("in a step that is recorded"), StateError);
    CHECK_FALSE(graph());
  };
  two_ranks(train);
}

TEST_CASE("GPU DDP: recordable() knows of synchronized layers") {
  if (on_cpu()) return;
  two_ranks([](World& world) {
    nn::Sequential model{nn::Linear(3, 3)};
    model.to(test_device());
    const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world,
                                            {.buffers = dist::BufferMode::off});
    CHECK(ddp.recordable());
    {
      nn::BatchNorm norm = nn::SyncBatchNorm(3, world);
      CHECK_FALSE(ddp.recordable());
      const auto another = nn::clone(norm);
      norm = nn::BatchNorm(3);
      CHECK_FALSE(ddp.recordable());
    }
    CHECK(ddp.recordable());
  });
}

}  // namespace
}  // namespace lockstep::test::getters
