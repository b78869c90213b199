// Audits (dist/audit/audit.h): they change nothing, see every planted fault, and name who has it.

#include "lockstep/dist/audit/audit.h"

#include <doctest/doctest.h>

#include <functional>
#include <mutex>
#include <random>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/lockstep.h"
#include "support/device.h"
#include "support/drill.h"
#include "support/expect.h"
#include "support/planted.h"
#include "support/text.h"

using namespace lockstep;
using lockstep::test::contains;

namespace {

constexpr int audit_lanes = 8;

data::TensorDataset audit_data(std::int64_t samples) {
  manual_seed(5);
  const Tensor x = Tensor::randn({samples, 6}), y = Tensor::empty({samples}, DType::i64);
  for (std::int64_t i = 0; i < samples; ++i) y.data<std::int64_t>()[i] = (i * i + i / 3) % 4;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

/// What a rank trains, for how long, and how often it is audited.
struct Audited {
  std::function<nn::Sequential()> model = [] {
    return nn::Sequential{nn::Linear(6, 5), nn::ReLU(), nn::Linear(5, 4)};
  };
  std::function<Tensor(nn::Sequential&, const data::Batch&)> loss =
      [](nn::Sequential& m, const data::Batch& b) { return nn::cross_entropy(m(b.x), b.y); };
  std::int64_t samples = 100, batch = 44;  // batches of 44, 44, 12; lanes of 6, 2 or 0
  std::int64_t every = 1, epochs = 2;
  bool adam = false;
  int lanes = audit_lanes;
};

/// The SHA-256 of parameters, buffers, and of what the generators draw next.
std::string train_audited(const Audited& it, World& world,
                          const std::function<void(const dist::Audit&)>& begins = {}) {
  manual_seed(1);
  nn::Sequential model = it.model();
  model.to(test::test_device());
  nn::convert_sync_batchnorm(model, world);
  const std::vector<Parameter> parameters = model.parameters();
  std::unique_ptr<optim::Optimizer> optimizer;
  if (it.adam)
    optimizer = std::make_unique<optim::Adam>(parameters, optim::Adam::Options{.lr = 0.01});
  else
    optimizer =
        std::make_unique<optim::SGD>(parameters, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
  dist::DistributedDataParallel ddp(parameters, model.buffers(), world, {.bucket_cap_mb = 0.0005});
  dist::Audit audit(ddp, {.every = it.every});
  if (begins) begins(audit);
  for (int epoch = 0; epoch < it.epochs; ++epoch) {
    const data::Loader loader(
        audit_data(it.samples),
        {.batch = it.batch, .shuffle = true, .lanes = it.lanes, .device = test::test_device()},
        world, epoch);
    for (const data::Batch& batch : loader) {
      (void)audit.backward(loader, batch, [&](const data::Batch& b) { return it.loss(model, b); });
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  test::expect(audit.audits() == (it.every == 0 ? 0 : audit.steps() / it.every), "{} audits",
               audit.audits());
  std::vector<Parameter> state = parameters;
  for (const Buffer& buffer : model.buffers())
    state.emplace_back(
        buffer.value.dtype() == DType::f32 ? buffer.value.clone() : cast(buffer.value, DType::f32),
        buffer.name);
  state.emplace_back(Tensor::randn({20}), "randn");
  state.emplace_back(dropout(Tensor::full({100}, 1, DType::f32), 0.5), "dropout");
  return parameter_digest(state);
}

std::string audited_hash(const Audited& it, int ranks) {
  std::string digest;
  std::mutex mutex;
  run_threads(ranks, {}, [&](World& world) {
    const std::string mine = train_audited(it, world);
    const std::lock_guard lock(mutex);
    check<Error>(digest.empty() || digest == mine, "rank {} has {}, another one {}", world.rank(),
                 mine, digest);
    digest = mine;
  });
  return digest;
}

void check_audits_change_nothing(Audited it) {
  it.every = 0;
  const std::string alone = audited_hash(it, 1);
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const std::int64_t every : {1, 2}) {
      CAPTURE(ranks);
      it.every = every;
      CHECK(audited_hash(it, ranks) == alone);
    }
}

/// What the fault drill of a run has come to.
struct Found {
  std::string message;  ///< the same on all ranks; empty: nothing was found
  std::string culprit;
};

/// Where a rank computes: which rank, in which step, and whether that is the step's own run.
struct Moment {
  int rank;
  std::int64_t step;
  bool own;
};
using Fault = std::function<void(const Moment&, int lane, int operand, const Tensor& gradient)>;

/// A training whose second layer has the fault.
Found found(int ranks, const Fault& fault, Audited it = {}) {
  std::vector<Found> said(static_cast<std::size_t>(ranks));
  try {
    run_threads(ranks, {}, [&](World& world) {
      const dist::Audit* audit = nullptr;
      Audited mine = it;
      mine.loss = [&](nn::Sequential& model, const data::Batch& batch) {
        const auto p = model.parameters();
        const auto plant = [&](int lane, int operand, const Tensor& gradient) {
          fault({world.rank(), audit->steps(), !recomputing()}, lane, operand, gradient);
        };
        const Tensor h = relu(linear(batch.x, p[0], p[1]));
        return nn::cross_entropy(test::planted_linear(h, p[2], p[3], plant), batch.y);
      };
      try {
        train_audited(mine, world, [&](const dist::Audit& made) { audit = &made; });
      } catch (const dist::AuditError& error) {
        said[static_cast<std::size_t>(world.rank())] = {error.what(), test::blamed_by(error)};
        throw;
      }
    });
  } catch (const dist::AuditError&) {
    for (const Found& one : said) test::expect(one.message == said[0].message, "{}", one.message);
  }
  return said[0];
}

/// Sets an element of operand 1 or 2.
void spoil(const Tensor& gradient, std::int64_t element) { gradient.data<float>()[element] = 7.5F; }

bool owns(int rank, int ranks, int lane) {
  const LaneRange range = lanes_of({rank, ranks}, audit_lanes);
  return range.first <= lane && lane < range.first + range.count;
}

}  // namespace

TEST_SUITE_BEGIN("not-address");  // audits compute everything twice

TEST_CASE("audit: it changes no bit, and alarms nobody: an MLP") {
  check_audits_change_nothing({});
  check_audits_change_nothing({.batch = 7, .epochs = 1, .adam = true});  // ranks without rows
}

TEST_CASE("audit: it changes no bit, and alarms nobody: statistics, dropout and Adam") {
  const auto model = [] {
    return nn::Sequential{nn::Linear(6, 8), nn::BatchNorm(8), nn::ReLU(),
                          nn::Dropout(0.3), nn::Linear(8, 8), nn::BatchNorm(8),
                          nn::ReLU(),       nn::Dropout(0.5), nn::Linear(8, 4)};
  };
  check_audits_change_nothing({.model = model, .adam = true});
}

TEST_CASE("audit: it changes no bit, and alarms nobody: blocks, and layers used twice") {
  const auto model = [] {
    return nn::Sequential{nn::Linear(6, 6), nn::BatchNorm(6), nn::Dropout(0.2), nn::Linear(6, 4)};
  };
  const auto loss = [](nn::Sequential& m, const data::Batch& batch) {
    Tensor h = batch.x;
    for (int i = 0; i < 2; ++i)
      h = checkpoint([&m](const Tensor& x) { return m[2](relu(m[1](m[0](x)))); }, h) + m[0](h);
    return nn::cross_entropy(m[3](h), batch.y);
  };
  check_audits_change_nothing({.model = model, .loss = loss, .adam = true});
}

TEST_CASE("audit: a fault that stays is found in time, for every lane, and named") {
  if (!test::on_cpu()) return;
  for (const int ranks : {3, 4, 8})
    for (int victim = 0; victim < ranks; ++victim)
      for (int lane = 0; lane < audit_lanes; ++lane) {
        if (!owns(victim, ranks, lane)) continue;
        const int operand = 1 + lane % 2, element = (victim + lane) % 4;
        CAPTURE(ranks);
        CAPTURE(victim);
        CAPTURE(lane);
        // Every lane has rows: the fault is in a step of 44.
        const Found it = found(ranks,
                               [&](const Moment& now, int at, int which, const Tensor& gradient) {
                                 if (now.rank == victim && at == lane && which == operand)
                                   spoil(gradient, element);
                               },
                               {.samples = 88, .every = 2, .epochs = 8});
        CAPTURE(it.message);
        const std::string name = operand == 1 ? "'2.weight'" : "'2.bias'";
        CHECK(contains(it.message, fmt::format(": rank {} computed lane {} wrongly: element {} of "
                                               "{} is 7.5 in the step of rank {}, and ",
                                               victim, lane, element, name, victim)));
        CHECK(contains(it.message, fmt::format("{} of {} ranks are against rank {}", ranks - 1,
                                               ranks, victim)));
        CHECK(it.culprit.starts_with(fmt::format("rank {} ", victim)));
        // Within 2 steps for each lane of the victim.
        const int lanes_of_victim = lanes_of({victim, ranks}, audit_lanes).count;
        const std::size_t at = it.message.find("step ") + 5;
        const int step = std::atoi(it.message.c_str() + at);
        CHECK(step >= 2);
        CHECK(step <= 2 * lanes_of_victim);
      }
}

TEST_CASE("audit: a rank that is always wrong is named, whoever audits whom") {
  if (!test::on_cpu()) return;
  for (const int ranks : {3, 4, 5, 8})
    for (int victim = 0; victim < ranks; ++victim) {
      const Found it = found(ranks, [&](const Moment& now, int, int, const Tensor& gradient) {
        if (now.rank == victim) spoil(gradient, 0);
      });
      CAPTURE(it.message);
      CHECK(contains(it.message, fmt::format("step 1: rank {} computed lane", victim)));
      CHECK(contains(it.message, "element 0 of '2.weight'"));
    }
}

TEST_CASE("audit: a fault that comes once is found if that step and that lane are audited") {
  if (!test::on_cpu()) return;
  for (const int ranks : {1, 2, 3, 8})
    for (int victim = 0; victim < ranks; ++victim) {
      const LaneRange range = lanes_of({victim, ranks}, audit_lanes);
      const int lane = range.first + 4 / 2 % range.count;  // of step 4, the second audit
      const auto once = [&](std::int64_t step, int where) {
        return found(
            ranks,
            [=](const Moment& now, int at, int which, const Tensor& gradient) {
              if (now.own && now.rank == victim && now.step == step && at == where && which == 2)
                spoil(gradient, 3);
            },
            {.samples = 88, .every = 2, .epochs = 4});
      };
      const Found it = once(4, lane);
      CAPTURE(it.message);
      CHECK(contains(it.message,
                     fmt::format("[audit] step 4: rank {} computed lane {} wrongly: element 3 of "
                                 "'2.bias' is 7.5 in the step of rank {}, and ",
                                 victim, lane, victim)));
      CHECK(once(5, lane).message == "");  // a step that is not audited
      if (range.count > 1) CHECK(once(4, range.first + 3 / 2 % range.count).message == "");
    }
}

TEST_CASE("audit: an auditor that is wrong is the one that is named") {
  if (!test::on_cpu()) return;
  for (const int ranks : {2, 3, 4})
    for (int auditor = 0; auditor < ranks; ++auditor) {
      std::atomic<int> times{0};
      const Found it = found(ranks, [&](const Moment& now, int, int which, const Tensor& gradient) {
        if (!now.own && now.rank == auditor && which == 1 && ++times == 1) spoil(gradient, 2);
      });
      CAPTURE(it.message);
      CHECK(contains(it.message, fmt::format("rank {} computed lane", auditor)));
      CHECK(contains(it.message, fmt::format("and 7.5 as rank {} computes it", auditor)));
      CHECK(it.culprit.starts_with(fmt::format("rank {} ", auditor)));
    }
}

TEST_CASE("audit: of two ranks that never agree none is blamed") {
  if (!test::on_cpu()) return;
  const Found it = found(2, [](const Moment& now, int, int, const Tensor& gradient) {
    if (now.rank == 1) spoil(gradient, 1);
  });
  CAPTURE(it.message);
  CHECK(contains(it.message, "step 1: rank 0 or rank 1 computed lane"));
  CHECK(contains(it.message, "element 1 of '2.weight'"));
  CHECK(contains(it.message, "there is no majority"));
  CHECK(it.culprit == "");
}

TEST_CASE("audit: sums over samples within forward and backward are audited, too") {
  // As BatchNorm notes them: what the lanes give, and what all have come to.
  for (const int victim : {0, 1, 2}) {
    std::string message;
    try {
      run_threads(3, {}, [&](World& world) {
        Audited it;
        it.loss = [&](nn::Sequential& model, const data::Batch& batch) {
          const Tensor given = Tensor::full({batch.lanes->count(), 2}, 1.25, DType::f64);
          if (world.rank() == victim && !recomputing()) given.data<double>()[1] = 0.5;
          if (LaneRecord* record = LaneRecord::current()) record->note("mine", given);
          return nn::cross_entropy(model(batch.x), batch.y);
        };
        train_audited(it, world);
      });
    } catch (const dist::AuditError& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK(contains(message, fmt::format("rank {} computed lane", victim)));
    CHECK(contains(message, "element 1 of sum 1 over samples, of mine is 0.5 in the step"));
  }
}

TEST_CASE("audit: what cannot be audited is refused") {
  const auto refused = [](const Audited& it, const std::string& text) {
    std::string message;
    try {
      audited_hash(it, 2);
    } catch (const Error& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK(contains(message, text));
  };
  refused({.lanes = 0}, "[audit] the batch has no lanes");
  refused({.every = -1}, "[audit] every -1 steps");
  const auto with_norm = [] {
    return nn::Sequential{nn::Linear(6, 8), nn::BatchNorm(8), nn::Linear(8, 4)};
  };
  refused({.model = with_norm,
           .loss =
               [](nn::Sequential& m, const data::Batch& b) {
                 return nn::cross_entropy(m[2](recomputing() ? m[0](b.x) : m[1](m[0](b.x))), b.y);
               }},
          "0 times, and 2 times in the step: the loss does not do again what it did");
  // More than in the step; of another shape; others in number.
  const auto of_lanes = [](std::initializer_list<Tensor> results) {
    LaneRecord::of_all_lanes(results, nullptr, [] {});
  };
  const std::function<void(bool)> others[] = {
      [&](bool again) { again ? of_lanes({Tensor::zeros({2})}) : void(); },
      [&](bool again) { of_lanes({Tensor::zeros({again ? 3 : 2})}); },
      [&](bool again) {
        again ? of_lanes({Tensor::zeros({2}), Tensor::zeros({2})}) : of_lanes({Tensor::zeros({2})});
      }};
  for (const auto& other : others)
    refused({.loss =
                 [&](nn::Sequential& m, const data::Batch& b) {
                   other(recomputing());
                   return nn::cross_entropy(m(b.x), b.y);
                 }},
            "lanes are brought together as they were not in the step");
  run_threads(1, {}, [](World& world) {
    nn::Sequential model = Audited{}.model();
    model.to(test::test_device());
    dist::DistributedDataParallel ddp(model.parameters(), {}, world);
    dist::Audit audit(ddp, {.every = 1});
    const data::Loader loader(audit_data(40),
                              {.batch = 40, .lanes = 8, .device = test::test_device()}, world);
    const auto step = [&] {
      for (const data::Batch& batch : loader)
        (void)audit.backward(loader, batch, [&](const data::Batch& b) {
          return nn::cross_entropy(model(b.x), b.y);
        });
    };
    step();
    CHECK_THROWS_WITH_AS(step(), doctest::Contains("has a gradient already"), StateError);
    ddp.zero_grad();
    const Tape tape;
    CHECK_THROWS_WITH_AS(step(), doctest::Contains("a tape is alive"), StateError);
  });
}

TEST_CASE("drill audits: in 100 audited steps of a random training nobody is alarmed") {
  test::drill(2, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    const std::int64_t width = 1 + below(9);
    const double p = static_cast<double>(below(6)) / 10;
    Audited it;
    it.model = [=] {
      return nn::Sequential{nn::Linear(6, width), nn::BatchNorm(width),     nn::ReLU(),
                            nn::Dropout(p),       nn::Linear(width, width), nn::Linear(width, 4)};
    };
    it.samples = 100 + below(200);
    it.batch = 1 + it.samples / 10 + below(5);
    if (it.samples % it.batch == 1) ++it.samples;  // BatchNorm takes no batch of one sample
    it.adam = seed % 2 == 0;
    it.every = it.epochs = 1;
    const std::int64_t steps = (it.samples + it.batch - 1) / it.batch;
    it.epochs = (100 + steps - 1) / steps;
    audited_hash(it, static_cast<int>(1 + below(8)));
  });
}

TEST_SUITE_END();
