// The memory of the gradients: how much, where, in which pieces, and that the pieces do not matter.

#include <doctest/doctest.h>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

nn::Sequential large_model() {
  return nn::Sequential{nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 256), nn::ReLU(),
                        nn::Linear(256, 10)};
}

/// By parameter: where its gradient lies.
std::vector<std::byte*> memory_of(const std::vector<Parameter>& parameters) {
  std::vector<std::byte*> result;
  for (const Parameter& p : parameters) result.push_back(p.gradient_slot().raw());
  return result;
}

}  // namespace

TEST_CASE("trap 18: the buckets are the gradients: one copy of them, before and after each step") {
  run_threads(2, {}, [](World& world) {
    manual_seed(0);
    nn::Sequential model = large_model();
    const std::vector<Parameter> parameters = model.parameters();
    DistributedDataParallel ddp(parameters, {}, world,
                                {.bucket_cap_mb = 1, .rebuild_buckets = false});
    const dist::BucketPlaces& places = ddp.buckets().places();
    std::int64_t elements = 0;
    for (const dist::GradientSize& size : ddp.buckets().sizes()) elements += size.numel;
    expect(elements == 535818 && places.buckets.size() > 1, "another model");
    expect(static_cast<double>(ddp.buckets().bytes()) <= 1.05 * 4 * 535818, "{} bytes",
           ddp.buckets().bytes());

    // Every gradient lies where its place is, in one piece of memory.
    const std::vector<std::byte*> before = memory_of(parameters);
    const auto& first = places.buckets[0].slots[0];
    const std::byte* start = before[dist::index(first.parameter)] - 4 * first.offset;
    for (const auto& bucket : places.buckets)
      for (const auto& slot : bucket.slots)
        expect(before[dist::index(slot.parameter)] == start + 4 * (bucket.begin + slot.offset),
               "'{}' lies elsewhere", parameters[dist::index(slot.parameter)].name());

    optim::SGD optimizer(parameters, {.lr = 0.1});
    const Tensor x = Tensor::full({2, 784}, 0.1 * (world.rank() + 1));
    const std::uint64_t copies = copies_made;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      expect(memory_of(parameters) == before, "moved by zero_grad");
      Tape tape;
      tape.backward(mean(model(x)));
      expect(memory_of(parameters) == before, "moved by backward");
      expect(parameters[0].gradient().raw() == before[0], "the gradient is its place");
      optimizer.step();
      expect(memory_of(parameters) == before, "moved by step");
    }
    expect(copies_made == copies, "{} copies", copies_made - copies);
  });
}

namespace {

/// The digest of a model after three steps of training in f32.
std::string trained(Communicator& communicator, double cap_mb) {
  manual_seed(21);
  nn::Sequential model{nn::Linear(3, 30), nn::ReLU(), nn::Linear(30, 20), nn::ReLU(),
                       nn::Linear(20, 2)};
  DistributedDataParallel ddp(model.parameters(), {}, communicator, {.bucket_cap_mb = cap_mb});
  optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  const std::int64_t begin = 7 * communicator.rank();
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    Tape tape;
    tape.backward(nn::mse(model(cast(rows(begin, begin + 7), DType::f32)),
                          cast(rows(begin, begin + 7, 2), DType::f32)));
    optimizer.step();
  }
  expect(replicas_agree(communicator, model.parameters()), "replicas differ");
  return parameter_digest(model.parameters());
}

std::string trained_on_threads(const char* comm, double cap_mb) {
  std::string digest;
  run_threads(3, {.comm = comm}, [&](World& world) {
    const std::string mine = trained(world.communicator(), cap_mb);
    if (world.rank() == 0) digest = mine;
  });
  return digest;
}

std::string trained_simulated(double cap_mb, bool shared_memory, std::uint64_t seed) {
  std::string digest;
  check_all_well(messages_simulated({.seed = seed, .size = 3, .shared_memory = shared_memory},
                                    [&](Communicator& communicator) {
                                      const std::string mine = trained(communicator, cap_mb);
                                      if (communicator.rank() == 0) digest = mine;
                                    }));
  return digest;
}

}  // namespace

TEST_CASE("trap 21: direct gives the same bits for any bucket cap, transport, timing and rerun") {
  const std::string digest = trained_on_threads("direct", 25);
  CHECK(digest.size() == 64);
  for (const double cap_mb : {25.0, 0.001, 1e-6}) {
    CAPTURE(cap_mb);
    CHECK(trained_on_threads("direct", cap_mb) == digest);
    for (const bool shared_memory : {false, true})
      CHECK(trained_simulated(cap_mb, shared_memory, 21) == digest);
  }
  CHECK(trained_simulated(0.001, true, 22) == digest);
}

TEST_CASE("trap 21: the ring gives the same bits again, but not for another cap") {
  const std::string digest = trained_on_threads("ring", 25);
  CHECK(trained_on_threads("ring", 25) == digest);
  CHECK(trained_on_threads("ring", 1e-6) != digest);  // negative control: caps can matter
}

TEST_CASE("trap 23: the first and the last bucket are small, the middle ones as large as the cap") {
  run_threads(2, {}, [](World& world) {
    std::vector<Parameter> parameters;
    for (int k = 0; k < 20; ++k)
      parameters.emplace_back(Tensor::zeros({256}), fmt::format("{}", k));  // 1 KiB each
    constexpr double kib = 1.0 / 1024;
    const DistributedDataParallel ddp(
        parameters, {}, world,
        {.bucket_cap_mb = 6 * kib, .first_bucket_mb = 1 * kib, .last_bucket_mb = 2 * kib});
    std::vector<std::size_t> sizes;
    for (const auto& bucket : ddp.buckets().places().buckets) sizes.push_back(bucket.slots.size());
    expect(sizes == std::vector<std::size_t>{1, 6, 6, 5, 2}, "{} buckets: {} .. {}", sizes.size(),
           sizes.front(), sizes.back());
    expect(ddp.buckets().places().buckets.front().slots[0].parameter == 19, "the last layer first");
  });
}

TEST_CASE("trap 23: ranks agree on rebuilt buckets, and reduce with them as with any") {
  run_threads(3, {}, [](World& world) {
    manual_seed(23);
    Net model, expected;
    expected.load_state_dict(model.state_dict());
    DistributedDataParallel ddp(model.parameters(), {}, world, {.bucket_cap_mb = 0.001});
    for (int r = 0; r < 3; ++r) {
      Tape tape;
      tape.backward(loss_of(expected, 4 * r, 4 * r + 4), Weight{1, 3});
    }
    for (int step = 0; step < 3; ++step) {
      for (const Parameter& p : model.parameters()) p.zero_grad();
      Tape tape;
      tape.backward(loss_of(model, 4 * world.rank(), 4 * world.rank() + 4));
      expect_same_gradients(model, expected);
    }
    const auto layouts = dist::gather_text(world.communicator(), ddp.bucket_layout());
    expect(std::ranges::count(layouts, layouts[0]) == 3, "{} and others", layouts[0]);
  });
}
