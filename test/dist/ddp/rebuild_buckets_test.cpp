// The second layout of the buckets, after the first step; local SGD, which borrows their memory.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "dist/ddp/members.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/nn/optim/optimizer.h"
#include "support/device.h"

using namespace lockstep;
using namespace lockstep::dist;
using lockstep::dist::testing::members;
using test::here;

namespace {

/// Registered a, b, c, d; used d, a, c, b: so they become ready as b, c, a, d.
struct FourLayers {
  std::vector<Parameter> all;
  explicit FourLayers(int seed = 0) {
    for (int k = 0; k < 4; ++k) {
      Tensor value = Tensor::empty({3, 3}, DType::f64);
      for (std::int64_t i = 0; i < 9; ++i)
        value.data<double>()[i] = std::sin(static_cast<double>(i + 7 * k + 100 * seed + 1));
      all.emplace_back(here(value), std::string(1, static_cast<char>('a' + k)));
    }
  }
  Tensor loss(int rank, int step, std::vector<std::size_t> order = {3, 0, 2, 1}) const {
    Tensor x = Tensor::empty({2, 3}, DType::f64);
    for (std::int64_t i = 0; i < 6; ++i)
      x.data<double>()[i] = std::cos(static_cast<double>(i + 10 * rank + 100 * step));
    Tensor y = here(x);
    for (const std::size_t k : order) y = tanh(matmul(y, all[k]));
    return mean(y * y);
  }
  std::vector<double> values() const {
    std::vector<double> result;
    for (const Parameter& p : all)
      for (const double v : p.value().to_vector<double>()) result.push_back(v);
    return result;
  }
};

constexpr double two_gradients = 150.0 / (1 << 20);  // MiB; a gradient has 72 bytes

DdpOptions options(bool rebuild_buckets, std::string layout = {}) {
  return {.bucket_cap_mb = two_gradients,
          .first_bucket_mb = two_gradients,
          .last_bucket_mb = two_gradients,
          .rebuild_buckets = rebuild_buckets,
          .bucket_layout = std::move(layout)};
}

}  // namespace

TEST_CASE("after the first step the buckets follow the ready order, and gradients stay") {
  for (const int size : {1, 2, 3})
    run_threads(size, {.comm = "direct"}, [](World& world) {
      const FourLayers net, fixed;
      const DistributedDataParallel ddp(net.all, {}, world, options(true));
      const DistributedDataParallel never(fixed.all, {}, world, options(false));
      check<Error>(members(ddp.buckets().places()) == std::vector<std::vector<int>>{{2, 3}, {0, 1}},
                   "the first layout");
      for (int step = 0; step < 3; ++step) {
        for (const FourLayers* n : {&net, &fixed}) {
          for (const Parameter& p : n->all) p.zero_grad();
          Tape tape;
          tape.backward(n->loss(world.rank(), step));
        }
        check<Error>(
            members(ddp.buckets().places()) == std::vector<std::vector<int>>{{1, 2}, {0, 3}},
            "step {}: the layout by ready order", step);
        for (std::size_t k = 0; k < 4; ++k)
          check<Error>(net.all[k].gradient().to_vector<double>() ==
                           fixed.all[k].gradient().to_vector<double>(),
                       "step {}: the gradient of {}", step, net.all[k].name());
      }
      check<Error>(ddp.bucket_layout() == "1 2 0 3 / 2", "layout {}", ddp.bucket_layout());
    });
}

TEST_CASE("the layout of the first step stays, in whatever order later gradients become ready") {
  run_threads(2, {.comm = "direct"}, [](World& world) {
    const FourLayers net;
    const DistributedDataParallel ddp(net.all, {}, world, options(true));
    for (int step = 0; step < 4; ++step) {
      for (const Parameter& p : net.all) p.zero_grad();
      Tape tape;
      tape.backward(step < 1 ? net.loss(0, step) : net.loss(0, step, {1, 2, 0, 3}));
      check<Error>(ddp.bucket_layout() == "1 2 0 3 / 2", "step {}: {}", step, ddp.bucket_layout());
    }
  });
}

TEST_CASE("gradients of before a DDP are gone, and those of after it have memory of their own") {
  run_threads(2, {.comm = "direct"}, [](World& world) {
    const FourLayers net;
    net.all[1].gradient_slot().fill(3);
    net.all[1].set_gradient_state(GradientState::local);
    {
      const DistributedDataParallel ddp(net.all, {}, world, options(true));
      for (const Parameter& p : net.all)
        check<Error>(p.gradient_state() == GradientState::nothing, "{} has a gradient", p.name());
      std::size_t most = 0, all = 0;
      for (const auto& bucket : ddp.buckets().all()) {
        most = std::max(most, bucket.wire.bytes());
        all += bucket.wire.bytes();
      }
      check<Error>(ddp.buckets().largest() == most && all == ddp.buckets().bytes(), "bytes");
      check<Error>(most > ddp.buckets().all()[0].wire.bytes(), "the first is the largest");
      Tape tape;
      tape.backward(net.loss(world.rank(), 0));
      check<Error>(net.all[0].gradient_slot().storage() == net.all[3].gradient_slot().storage(),
                   "one arena");
    }
    for (const Parameter& p : net.all)
      check<Error>(p.gradient_state() == GradientState::nothing, "{} has a gradient", p.name());
    check<Error>(net.all[0].gradient_slot().storage() != net.all[3].gradient_slot().storage(),
                 "the arena is still used");
  });
}

TEST_CASE("what becomes padding in another layout is zero: it travels with the gradients") {
  run_threads(2, {.comm = "direct"}, [](World& world) {
    std::vector<Parameter> all;  // of 3, 9, 1 and 13 elements: each is followed by padding
    for (const std::int64_t numel : {3, 9, 1, 13})
      all.emplace_back(here(Tensor::full({numel}, 0.5, DType::f64)),
                       std::string(1, static_cast<char>('a' + all.size())));
    const DistributedDataParallel ddp(all, {}, world, options(true));
    const std::string first = ddp.bucket_layout();
    for (int step = 0; step < 2; ++step) {
      for (const Parameter& p : all) p.zero_grad();
      Tape tape;
      Tensor loss = Tensor::scalar(0, DType::f64, all[0].value().device());
      for (const std::size_t k : {3u, 0u, 2u, 1u})
        loss = loss * 2.0 + sum(square(all[k])) * static_cast<double>(world.rank() + 1);
      tape.backward(loss);
    }
    check<Error>(ddp.bucket_layout() != first, "one layout: {}", first);
    const BucketPlaces& places = ddp.buckets().places();
    for (std::size_t b = 0; b < places.buckets.size(); ++b) {
      std::vector<double> rest = ddp.buckets().all()[b].memory.to_vector<double>();
      for (const BucketPlaces::Slot& slot : places.buckets[b].slots) {
        const auto begin = rest.begin() + slot.offset;
        const auto end = begin + all[static_cast<std::size_t>(slot.parameter)].value().numel();
        check<Error>(std::find(begin, end, 0.0) == end, "a gradient has a zero");
        std::fill(begin, end, 0.0);
      }
      for (const double padding : rest) check<Error>(padding == 0, "padding is {}", padding);
    }
  });
}

TEST_CASE("the first rank with data in the first step decides the layout, whichever rank it is") {
  for (const int size : {1, 2, 3, 4, 7})
    for (int source = 0; source < size; ++source)
      run_threads(size, {.comm = "direct"}, [=](World& world) {
        const FourLayers net;
        DistributedDataParallel ddp(net.all, {}, world, options(true));
        if (world.rank() < source) {
          ddp.synchronize();
        } else {  // those after it see their gradients in another order
          const bool first = world.rank() == source;
          Tape tape;
          tape.backward(first ? net.loss(0, 0) : net.loss(0, 0, {1, 2, 0, 3}), Weight{1});
        }
        check<Error>(ddp.bucket_layout() == "1 2 0 3 / 2", "source {}: {}", source,
                     ddp.bucket_layout());
      });
}

TEST_CASE("a step without data on any rank decides no layout") {
  run_threads(3, {.comm = "direct"}, [](World& world) {
    const FourLayers net;
    DistributedDataParallel ddp(net.all, {}, world, options(true));
    const std::string first = ddp.bucket_layout();
    ddp.synchronize();
    check<Error>(ddp.bucket_layout() == first, "{}", ddp.bucket_layout());
    Tape tape;
    tape.backward(net.loss(world.rank(), 0));
    check<Error>(ddp.bucket_layout() == "1 2 0 3 / 2", "{}", ddp.bucket_layout());
  });
}

TEST_CASE("a layout from a checkpoint holds from the first step on") {
  run_threads(2, {}, [](World& world) {
    const FourLayers net;
    const DistributedDataParallel ddp(net.all, {}, world, options(true, "1 2 0 3 / 2"));
    for (int step = 0; step < 2; ++step) {
      check<Error>(members(ddp.buckets().places()) == std::vector<std::vector<int>>{{1, 2}, {0, 3}},
                   "the layout");
      Tape tape;
      tape.backward(net.loss(world.rank(), step));
    }
    bool refused = false;
    try {
      const FourLayers other;
      const DistributedDataParallel bad(other.all, {}, world, options(false, "1 2 0 / 2"));
    } catch (const UsageError& error) {
      refused = std::string(error.what()).find("orders 3 parameters, the model has 4") !=
                std::string::npos;
    }
    check<Error>(refused, "a layout of another model was taken");
  });
}

TEST_CASE("an accumulation window is never cut by a new layout") {
  run_threads(2, {.comm = "direct"}, [](World& world) {
    const FourLayers net, whole;
    const DistributedDataParallel ddp(net.all, {}, world, options(true));
    const DistributedDataParallel once(whole.all, {}, world, options(false));
    for (int part = 0; part < 3; ++part) {
      Tape tape;
      tape.backward(net.loss(world.rank(), part), Weight{1}, {.sync = part == 2});
      check<Error>((ddp.bucket_layout() == "1 2 0 3 / 2") == (part == 2), "part {}", part);
    }
    Tape tape;
    const Tensor sum =
        whole.loss(world.rank(), 0) + whole.loss(world.rank(), 1) + whole.loss(world.rank(), 2);
    tape.backward(scale(sum, 1.0 / 3));
    for (std::size_t k = 0; k < 4; ++k) {
      const auto mine = net.all[k].gradient().to_vector<double>(),
                 right = whole.all[k].gradient().to_vector<double>();
      for (std::size_t i = 0; i < mine.size(); ++i)
        check<Error>(std::abs(mine[i] - right[i]) < 1e-15, "{}[{}]", net.all[k].name(), i);
    }
  });
}

TEST_CASE(
    "local SGD: steps of one's own on the mean of one's window, then the mean of the replicas") {
  run_threads(3, {}, [](World& world) {
    const FourLayers net, alone;
    optim::SGD local(net.all, {.lr = 0.5}), reference(alone.all, {.lr = 0.5});
    const Buffer floating{"mean", Tensor::zeros({2})},
        count{"count", Tensor::zeros({1}, DType::i64)};
    DistributedDataParallel ddp(net.all, {floating, count}, world);
    floating.value.copy_from(Tensor::full({2}, 3 * world.rank()));
    count.value.copy_from(Tensor::full({1}, 5 + world.rank(), DType::i64));
    for (int step = 0; step < 3; ++step) {
      {
        const NoSync scope = ddp.no_sync();
        for (int part = 0; part < 2; ++part) {
          Tape tape;
          tape.backward(net.loss(world.rank(), 2 * step + part), Weight{3, 18});
        }
      }
      local.step(optim::local);
      local.zero_grad();
      Tape tape;
      tape.backward(
          scale(alone.loss(world.rank(), 2 * step) + alone.loss(world.rank(), 2 * step + 1), 0.5));
      reference.step(optim::local);
      reference.zero_grad();
      const auto mine = net.values(), right = alone.values();
      for (std::size_t i = 0; i < mine.size(); ++i)
        check<Error>(std::abs(mine[i] - right[i]) < 1e-14, "step {}, value {}", step, i);
    }
    // The mean over the replicas, from everybody's values.
    const auto mine = net.values();
    const Tensor all = Tensor::empty({3, 36}, DType::f64);
    world.communicator().all_gather(Tensor::of({36}, mine), all, "values").wait();
    ddp.average_parameters();
    const auto averaged = net.values();
    for (std::size_t i = 0; i < 36; ++i) {
      double mean_of = 0;
      for (std::size_t r = 0; r < 3; ++r) mean_of += all.data<double>()[36 * r + i] / 3;
      check<Error>(std::abs(averaged[i] - mean_of) < 1e-15, "value {} of the mean", i);
    }
    check<Error>(gather_text(world.communicator(), parameter_digest(net.all))[0] ==
                     parameter_digest(net.all),
                 "the replicas differ");
    check<Error>(floating.value.to_vector<float>() == std::vector<float>{3, 3},
                 "the buffers' mean");
    check<Error>(count.value.item() == 5, "a count is rank 0's, not {}", count.value.item());
    // Training goes on as ever.
    Tape tape;
    tape.backward(net.loss(world.rank(), 9));
    local.step();
  });
}

TEST_CASE("averaging refuses to overwrite gradients that are still wanted") {
  run_threads(2, {}, [](World& world) {
    const FourLayers net;
    DistributedDataParallel ddp(net.all, {}, world);
    Tape tape;
    tape.backward(net.loss(world.rank(), 0), {}, {.sync = false});
    std::string message;
    try {
      ddp.average_parameters();
    } catch (const StateError& error) {
      message = error.what();
    }
    check<Error>(message.find("'a' is local") != std::string::npos, "'{}'", message);
  });
}
