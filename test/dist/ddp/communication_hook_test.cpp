// Communication hooks: what travels instead of gradients, on simulated worlds and on threads.

#include "lockstep/dist/ddp/hooks/communication_hook.h"

#include <doctest/doctest.h>

#include <cmath>

#include "dist/ddp/halves_hook.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/lockstep.h"
#include "support/device.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using lockstep::test::check_all_well;
using lockstep::test::expect;
using lockstep::test::expect_error;

namespace {

/// Different for every rank and index; sums of them round in 16 bits.
float gradient_value(int rank, std::int64_t i) {
  return std::sin(static_cast<float>(i * 13 + rank * 5 + 1)) *
         std::exp2(static_cast<float>(rank % 3));
}

Tensor values(int rank, std::int64_t numel, DType dtype = DType::f32) {
  const Tensor result = Tensor::empty({numel}, DType::f32);
  for (std::int64_t i = 0; i < numel; ++i) result.data<float>()[i] = gradient_value(rank, i);
  if (dtype == DType::f32) return result;
  const Tensor narrow = Tensor::empty({numel}, dtype);
  kernels::cast(result, narrow);
  return narrow;
}

/// On every rank of simulated worlds, with shared memory and without.
void on_ranks(int size, const std::function<void(Communicator&)>& body) {
  for (const bool shared : {false, true})
    check_all_well(test::messages_simulated({.seed = 3, .size = size, .shared_memory = shared},
                                            [&](HostCommunicator& c) { body(c); }));
}

/// f32 parameters whose gradient under loss() is `weight`, element by element.
struct WeightedSum {
  std::vector<Parameter> parameters;
  explicit WeightedSum(std::vector<std::int64_t> sizes) {
    for (const std::int64_t n : sizes)
      parameters.emplace_back(Tensor::zeros({n}), fmt::format("p{}", parameters.size()));
  }
  /// sum over the parameters k with bit k in `used` of p_k . g_k, where g_k are values(rank + k).
  Tensor loss(int rank, unsigned used = ~0u) const {
    Tensor total;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (!(used >> k & 1)) continue;
      const Tensor p = parameters[k];
      const Tensor part = sum(p * values(rank + static_cast<int>(k), p.numel()));
      total = total.defined() ? total + part : part;
    }
    return total;
  }
};

/// Sums buckets itself, and notes the order of its calls.
struct Recorder final : CommunicationHook {
  std::string log;
  std::string name() const override { return "recorder"; }
  void prepare(std::span<const BucketView> buckets, Communicator&) override {
    log += fmt::format("prepare {}; ", buckets.size());
  }
  Work reduce(const BucketView& bucket, Communicator& c) override {
    log += fmt::format("reduce {}; ", bucket.index);
    return c.all_reduce(bucket.memory, bucket.name);
  }
  void complete(const BucketView& bucket, Communicator&) override {
    log += fmt::format("complete {}; ", bucket.index);
    std::int64_t numel = 0;
    for (const Parameter& p : bucket.parameters) numel += p.gradient_slot().numel();
    expect(numel <= bucket.memory.numel(), "{} elements in {}", numel, bucket.memory.numel());
  }
};

}  // namespace

TEST_CASE("all_reduce and reduce_scatter of f16 and bf16 add up in f32 and round once" *
          doctest::test_suite("not-thread")) {
  for (const int size : {1, 2, 3, 4, 7})
    for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::two_shot, Algorithm::ring,
                                      Algorithm::one_shot, Algorithm::halving})
      for (const bool shared : {false, true}) {
        const SimOptions options{.seed = 9, .size = size, .shared_memory = shared};
        const auto program = [&](HostCommunicator& c) {
          const int me = c.rank();
          for (const DType dtype : {DType::f16, DType::bf16})
            for (const std::int64_t n : {0, 1, 7, 1000}) {
              // The tree over ranks in f64, which adds up so few of these exactly enough.
              std::vector<std::vector<double>> given(static_cast<std::size_t>(size));
              for (int r = 0; r < size; ++r) {
                const Tensor of_rank = values(r, n, dtype);
                for (std::int64_t i = 0; i < n; ++i)
                  given[static_cast<std::size_t>(r)].push_back(of_rank.slice(i, i + 1).item());
              }
              const auto check_elements = [&](const Tensor& result, std::int64_t begin) {
                for (std::int64_t i = 0; i < result.numel(); ++i) {
                  double right = 0, sizes = 0;
                  for (int r = 0; r < size; ++r) {
                    const double x =
                        given[static_cast<std::size_t>(r)][static_cast<std::size_t>(begin + i)];
                    right += x;
                    sizes += std::abs(x);
                  }
                  const double off = result.slice(i, i + 1).item() - right;
                  const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
                  expect(std::abs(off) <= unit * std::abs(right) + 0x1p-21 * sizes + 0x1p-25,
                         "{} of {}: {} is off by {}", dtype, n, begin + i, off);
                }
              };
              for (const bool window : {false, true}) {
                const Tensor data = window ? c.allocate(n, dtype) : Tensor::empty({n}, dtype);
                data.copy_from(values(me, n, dtype));
                c.all_reduce(data, "sum").wait();
                check_elements(data, 0);
              }
              const Range part = partition(n, size, me);
              const Tensor mine = Tensor::empty({part.size()}, dtype);
              c.reduce_scatter(values(me, n, dtype), mine, "part").wait();
              check_elements(mine, part.begin);
            }
        };
        test::run_simulated(options, program, {.algorithm = algorithm});
      }
}

TEST_CASE("elements that no communicator adds up are refused") {
  const Tensor bytes = Tensor::zeros({3}, DType::u8);
  const SimReport report = simulate({.size = 1}, [&](int, std::unique_ptr<Transport> t) {
    HostCommunicator c(std::move(t));
    CHECK_NOTHROW(c.all_reduce(Tensor::zeros({3}, DType::bf16), "x"));
    CHECK_THROWS_WITH_AS(c.all_reduce(bytes, "x"),
                         "[all_reduce] 'x' takes f32, f64, i32, i64, f16 or bf16, got u8",
                         DTypeError);
    CHECK_THROWS_AS(c.reduce_scatter(bytes, bytes, "x"), DTypeError);
  });
  CHECK_FALSE(report.errors[0]);
}

TEST_CASE("bytes_moved counts what travels: 2 (n - 1) / n of an all-reduce, half of it in bf16") {
  for (const int size : {1, 2, 3, 4})
    for (const bool shared : {false, true})
      check_all_well(test::messages_simulated(
          {.seed = 1, .size = size, .shared_memory = shared}, [&](HostCommunicator& c) {
            const auto moved = [&](DType dtype) {
              const Tensor data = c.allocate(12000, dtype);
              const std::uint64_t before = c.bytes_moved();
              c.all_reduce(data, "counted").wait();
              c.barrier("all").wait();
              return c.bytes_moved() - before;
            };
            const auto n = static_cast<std::uint64_t>(size);
            expect(moved(DType::f32) == 48000 * 2 * (n - 1) / n, "f32: {}", moved(DType::f32));
            expect(moved(DType::bf16) == 24000 * 2 * (n - 1) / n, "bf16: {}", moved(DType::bf16));
          }));
}

TEST_CASE("compressed gradients: every contribution rounded once, and the sum") {
  for (const int size : {1, 2, 3, 4})
    for (const DType dtype : {DType::bf16, DType::f16})
      on_ranks(size, [&](Communicator& c) {
        const WeightedSum model({5, 300, 1, 64});
        DistributedDataParallel ddp(model.parameters, {}, c,
                                    {.bucket_cap_mb = 0.001,
                                     .first_bucket_mb = 0.0001,
                                     .last_bucket_mb = 0.0001,
                                     .hook = compress(dtype)});
        for (int step = 0; step < 3; ++step) {
          Tape tape;
          tape.backward(model.loss(c.rank() + step), Weight{1, 1});
          for (std::size_t k = 0; k < 4; ++k) {
            const Tensor gradient = model.parameters[k].gradient();
            expect(gradient.defined(), "p{} has no gradient", k);
            for (std::int64_t i = 0; i < gradient.numel(); ++i) {
              double right = 0, sizes = 0;
              for (int r = 0; r < size; ++r) {
                const double x = gradient_value(r + step + static_cast<int>(k), i);
                right += x;
                sizes += std::abs(x);
              }
              const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
              const double off = std::abs(gradient.data<float>()[i] - right);
              expect(off <= 1.01 * unit * (sizes + std::abs(right)) + 0x1p-23,
                     "p{}[{}] is off by {}", k, i, off);
              // It did travel in 16 bits.
              Tensor once = Tensor::empty({1}, dtype), back = Tensor::empty({1});
              kernels::cast(gradient.slice(i, i + 1), once);
              kernels::cast(once, back);
              expect(back.item() == gradient.data<float>()[i], "p{}[{}] has more bits", k, i);
            }
          }
          for (const Parameter& p : model.parameters) p.zero_grad();
        }
      });
}

TEST_CASE("a hook is called in index order, and sees windows as one, unused ones as zeros") {
  for (const int size : {1, 2, 3})
    on_ranks(size, [&](Communicator& c) {
      const auto hook = std::make_shared<Recorder>();
      const WeightedSum model({40, 50, 60}), plain({40, 50, 60});
      const DdpOptions options{.bucket_cap_mb = 0.0002,
                               .first_bucket_mb = 0.0001,
                               .last_bucket_mb = 0.0001,
                               .rebuild_buckets = false};
      DdpOptions with = options;
      with.hook = hook;
      DistributedDataParallel ddp(model.parameters, {}, c, with);
      DistributedDataParallel other(plain.parameters, {}, c, options);
      const std::size_t buckets = ddp.buckets().places().buckets.size();
      expect(buckets == 3, "{} buckets", buckets);
      const auto both = [&](unsigned used, Weight weight, bool sync) {
        for (const WeightedSum* m : {&model, &plain}) {
          Tape tape;
          tape.backward(m->loss(c.rank(), used), weight, {.sync = sync});
        }
      };
      const auto same = [&] {
        for (std::size_t k = 0; k < 3; ++k) {
          const Tensor a = model.parameters[k].gradient(), b = plain.parameters[k].gradient();
          expect(a.defined() == b.defined(), "p{} is used by nobody, or is not", k);
          if (a.defined()) expect(a.to_vector<float>() == b.to_vector<float>(), "p{} differs", k);
          model.parameters[k].zero_grad();
          plain.parameters[k].zero_grad();
        }
      };
      expect(hook->log == "prepare 3; ", "'{}'", hook->log);
      hook->log.clear();
      both(c.rank() == 0 ? 1 : 5, {}, true);  // p1 is used by nobody
      const std::string in_order =
          "reduce 0; reduce 1; reduce 2; complete 0; complete 1; complete 2; ";
      expect(hook->log == in_order, "'{}'", hook->log);
      same();
      hook->log.clear();
      both(7, Weight{2.0}, false);
      expect(hook->log.empty(), "within the window: '{}'", hook->log);
      both(3, Weight{3.0 + c.rank()}, true);
      expect(hook->log == in_order, "'{}'", hook->log);
      same();
    });
}

/// Trains across a change of the layout; gradients may be `off` the exact sums.
void follow_layouts(const std::function<std::shared_ptr<CommunicationHook>()>& make, float off) {
  on_ranks(2, [&](Communicator& c) {
    const auto hook = make();
    const WeightedSum model({40, 50, 60, 70});
    DistributedDataParallel ddp(model.parameters, {}, c,
                                {.bucket_cap_mb = 0.0003,
                                 .first_bucket_mb = 0.0001,
                                 .last_bucket_mb = 0.0001,
                                 .hook = hook});
    const std::string first_layout = ddp.bucket_layout();
    for (int step = 0; step < 3; ++step) {
      // The last one used is ready first: in the order of registration.
      Tape tape;
      Tensor total = sum(Tensor(model.parameters[3]) * values(c.rank(), 70));
      for (const int k : {2, 1, 0})
        total = total + sum(Tensor(model.parameters[static_cast<std::size_t>(k)]) *
                            values(c.rank(), 40 + 10 * k));
      tape.backward(total, Weight{1, 1});
      for (const Parameter& p : model.parameters) {
        for (std::int64_t i = 0; i < p.value().numel(); ++i)
          expect(std::abs(p.gradient().data<float>()[i] -
                          (gradient_value(0, i) + gradient_value(1, i))) <= off,
                 "{} step {}", p.name(), step);
        p.zero_grad();
      }
    }
    expect(ddp.bucket_layout() != first_layout, "the layout did not change: {}", first_layout);
  });
}

TEST_CASE("the hook follows the buckets to another layout") {
  follow_layouts([] { return std::make_shared<Recorder>(); }, 0);
  follow_layouts([] { return std::make_shared<test::HalvesHook>(); }, 0);
  follow_layouts([] { return compress(DType::bf16); }, 0.05f);
  follow_layouts([] { return compress(DType::f16); }, 0.005f);
}

TEST_CASE("sums beyond the range of f16 are infinite, which NonFinite sees") {
  for (const NonFinite policy : {NonFinite::ignore, NonFinite::skip, NonFinite::stop})
    on_ranks(3, [&](Communicator& c) {
      const Parameter p(Tensor::zeros({4}), "p");
      DistributedDataParallel ddp({p}, {}, c, {.nonfinite = policy, .hook = compress(DType::f16)});
      const auto step = [&](double size) {
        Tape tape;
        tape.backward(sum(Tensor(p) * Tensor::full({4}, size)), Weight{1, 1});
      };
      if (policy == NonFinite::stop) {
        expect_error<StateError>("'p' is finite on each rank, but not their sum",
                                 [&] { step(30000); });
        return;
      }
      step(30000);
      expect(p.gradient().defined() == (policy == NonFinite::ignore), "the verdict");
      if (policy == NonFinite::ignore) {
        expect(std::isinf(p.gradient().data<float>()[0]), "the sum");
        return;
      }
      step(1000);
      expect(p.gradient().data<float>()[3] == 3000, "after the skipped step");
    });
}

TEST_CASE("a hook takes gradients from a GPU and brings them back") {
  on_ranks(2, [](Communicator& c) {
    const Parameter p(Tensor::zeros({8, 24}, DType::f32, test::test_device()), "p");
    DistributedDataParallel ddp({p}, {}, c, {.hook = compress(DType::bf16)});
    const Tensor g = Tensor::empty({8, 24});
    for (std::int64_t i = 0; i < g.numel(); ++i)
      g.data<float>()[i] = gradient_value(0, i) * (1.0f + c.rank());
    Tape tape;
    tape.backward(sum(Tensor(p) * g.to(test::test_device())), Weight{1, 1});
    const auto result = p.gradient().to_vector<float>();
    for (std::int64_t i = 0; i < g.numel(); ++i) {
      const float right = 3 * gradient_value(0, i);
      const float off = std::abs(result[static_cast<std::size_t>(i)] - right);
      expect(off <= 0.01f * std::abs(right) + 1e-6f, "{}: {} is off by {}", i, right, off);
    }
  });
}

TEST_CASE("several models, each with its hook, and one without") {
  on_ranks(2, [&](Communicator& c) {
    const WeightedSum a({33}), b({20}), d({10});
    DistributedDataParallel first(a.parameters, {}, c, {.hook = compress(DType::bf16)});
    DistributedDataParallel second(b.parameters, {}, c, {.hook = compress(DType::f16)});
    DistributedDataParallel third(d.parameters, {}, c);
    for (int step = 0; step < 3; ++step) {
      Tape tape;
      tape.backward(a.loss(c.rank()) + b.loss(c.rank()) + d.loss(c.rank()), Weight{1, 1});
      for (const WeightedSum* m : {&a, &b, &d}) {
        const Parameter& p = m->parameters[0];
        for (std::int64_t i = 0; i < p.value().numel(); ++i) {
          const float right = gradient_value(0, i) + gradient_value(1, i);
          expect(std::abs(p.gradient().data<float>()[i] - right) < 0.02, "{}", i);
        }
        p.zero_grad();
      }
    }
  });
}

TEST_CASE("hooks that differ between ranks, or cannot be, are refused by name") {
  for (const std::string& message : test::messages_simulated({.size = 2}, [](HostCommunicator& c) {
         const WeightedSum model({4});
         DistributedDataParallel ddp(model.parameters, {}, c,
                                     {.hook = c.rank() ? compress(DType::bf16) : nullptr});
       })) {
    CHECK(message.find("hook none on rank 0, hook compress bf16 on rank 1") != std::string::npos);
  }
  for (const std::string& message : test::messages_simulated({.size = 2}, [](HostCommunicator& c) {
         DistributedDataParallel ddp({test::scalar("wide")}, {}, c,
                                     {.hook = compress(DType::bf16)});
       })) {
    CHECK(message.find("('wide', ...) are f64; only f32 can travel as bf16") != std::string::npos);
  }
  CHECK_THROWS_WITH_AS(compress(DType::f64),
                       "[compress] gradients travel as f16 or bf16, not as f64", DTypeError);
}
