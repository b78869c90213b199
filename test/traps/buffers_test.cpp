// Buffers, and work that one rank does alone: nothing collective where nobody expects it.

#include <doctest/doctest.h>

#include <atomic>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Its first layer is the normalization, so that the data alone decides its statistics.
struct InputNorm : nn::Module {
  nn::BatchNorm norm{3, {.dtype = DType::f64}};
  nn::Linear last{3, 2, true, DType::f64};
  Tensor forward(const Tensor& x) override { return last(tanh(norm(x))); }
  void visit(nn::Visitor& p) override {
    p("norm", norm);
    p("last", last);
  }
};

/// PyTorch's formula for the first batch: 0.9 * 0 + 0.1 * mean.
std::vector<double> first_running_mean(const Tensor& x) {
  std::vector<double> mean(3, 0);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    mean[static_cast<std::size_t>(i % 3)] +=
        0.1 * x.data<double>()[i] / static_cast<double>(x.size(0));
  return mean;
}

bool close(const Tensor& tensor, const std::vector<double>& expected) {
  return distance(tensor, Tensor::of<double>(tensor.shape(), expected)) < 1e-15;
}

}  // namespace

TEST_CASE("trap 19: two forwards before one backward: buffers do not change in between") {
  run_threads(3, {}, [](World& world) {
    manual_seed(19);
    InputNorm model, alone;
    alone.load_state_dict(model.state_dict());
    DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    const auto loss = [](InputNorm& net) {  // the first forward's statistics, saved, are used last
      const Tensor a = net(rows(0, 4)), b = net(rows(10, 15));
      return mean(a * a) + mean(b * b);
    };
    {
      Tape tape;
      tape.backward(loss(model));  // the same on all ranks
      Tape without_ddp;
      without_ddp.backward(loss(alone));
    }
    expect_same_gradients(model, alone);
    expect_same_values(model, alone, 1e-15);
  });
}

TEST_CASE(
    "trap 19: buffers synchronize once per step, after backward: rank 0's, the mean, or not") {
  for (const auto mode :
       {dist::BufferMode::broadcast, dist::BufferMode::average, dist::BufferMode::off})
    run_threads(3, {}, [mode](World& world) {
      InputNorm model;
      DistributedDataParallel ddp(model.parameters(), model.buffers(), world, {.buffers = mode});
      std::vector<std::vector<double>> each;
      for (int r = 0; r < 3; ++r) each.push_back(first_running_mean(rows(5 * r, 5 * r + 4)));
      const std::vector<double>& mine = each[dist::index(world.rank())];
      const Tensor x = rows(5 * world.rank(), 5 * world.rank() + 4);
      {
        Tape tape;
        const Tensor y = model(x);
        expect(close(model.norm.running_mean, mine), "changed by forward");
        tape.backward(mean(y * y), {}, {.sync = false});
        expect(close(model.norm.running_mean, mine), "changed by a backward that does not");
      }
      ddp.synchronize();
      std::vector<double> average(3, 0);
      for (std::size_t c = 0; c < 3; ++c)
        for (const auto& one : each) average[c] += one[c] / 3;
      expect(close(model.norm.running_mean, mode == dist::BufferMode::broadcast ? each[0]
                                            : mode == dist::BufferMode::average ? average
                                                                                : mine),
             "mode {}", static_cast<int>(mode));
    });
}

TEST_CASE("trap 24: evaluation on rank 0 alone does not deadlock, SyncBatchNorm included") {
  run_threads(3, {}, [](World& world) {
    manual_seed(24);
    InputNorm model;
    nn::convert_sync_batchnorm(model, world);
    DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      const std::int64_t begin = 10 * step + 3 * world.rank();
      optimizer.zero_grad();
      {
        Tape tape;
        const Tensor y = model(rows(begin, begin + 3));
        tape.backward(mean(y * y));
      }
      optimizer.step();
      if (world.rank() > 0) continue;  // the others are in the next step already
      model.eval();
      expect(model(rows(50, 57)).shape() == Shape{7, 2}, "evaluated");
      model.train();
    }
    expect(replicas_agree(world.communicator(), model.parameters()), "replicas differ");
  });
}

TEST_CASE("trap 24: on_rank0: nobody goes on before it has ended, and its error is everybody's") {
  std::atomic<int> saved{0};
  run_threads(3, {}, [&](World& world) {
    dist::on_rank0(world.communicator(), [&] { ++saved; });
    expect(saved == 1, "before it had ended, or more than once: {}", saved.load());
  });
  const auto messages = messages_on_threads(3, [](World& world) {
    const auto save = [] { fail<DataError>("[save] disk full"); };
    try {
      dist::on_rank0(world.communicator(), save);
    } catch (const Error& error) {
      world.communicator().barrier("goes on").wait();
      throw;
    }
  });
  check_all_say(messages, {"[save] disk full"});
  check_all_say({messages[1], messages[2]}, {"[on_rank0] rank 0 failed: "});
}

TEST_CASE("trap: a module that puts another tensor in the place of a buffer") {
  struct Counting : nn::Module {
    explicit Counting(bool assigns) : assigns(assigns) {}
    bool assigns;
    nn::Linear layer{3, 1, true, DType::f64};
    Tensor seen = Tensor::zeros({1}, DType::f64);
    Tensor forward(const Tensor& x) override {
      const Tensor sum = seen + static_cast<double>(x.size(0));
      assigns ? (void)(seen = sum) : seen.copy_from(sum);
      return layer(x);
    }
    void visit(nn::Visitor& p) override {
      p("layer", layer);
      p("seen", seen);
    }
  };
  for (const auto mode : {dist::BufferMode::broadcast, dist::BufferMode::average})
    for (const bool assigns : {false, true}) {
      const auto messages = messages_on_threads(3, [&](World& world) {
        Counting model(assigns);
        DistributedDataParallel ddp(model.parameters(), model.buffers(), world, {.buffers = mode});
        for (int step = 0; step < 2; ++step) {
          ddp.zero_grad();
          Tape tape;
          tape.backward(mean(model(rows(0, 2 + world.rank()))));
        }
        const double steps = mode == dist::BufferMode::average ? 3 : 2;
        expect(model.seen.item() == 2 * steps, "{}", model.seen.item());
      });
      if (assigns)
        check_all_say(messages, {"another tensor in the place of 'seen'"});
      else
        check_all_well(messages);
    }
}
