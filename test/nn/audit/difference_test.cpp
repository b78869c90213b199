// What an audit says of a difference: which element, of which lane, on which rank of the job,
// whatever the numbers are and however few ranks train together.

#include <doctest/doctest.h>

#include <limits>

#include "lockstep/dist/audit/audit.h"
#include "lockstep/lockstep.h"
#include "support/device.h"
#include "support/expect.h"
#include "support/text.h"

using namespace lockstep;
using lockstep::test::contains;

namespace {

constexpr int difference_lanes = 8;
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Said {
  std::string message, culprit;
};

/// A step in which what each lane gives to a sum over samples is {NaN, its own number, 0}; the rank
/// `wrong` of `world` has `value` for element `element` of all its lanes.
Said audited_step(World& world, int wrong, std::int64_t element, double value) {
  manual_seed(1);
  nn::Sequential model{nn::Linear(3, 2)};
  dist::DistributedDataParallel ddp(model.parameters(), {}, world);
  dist::Audit audit(ddp, {.every = 1});
  const data::Loader loader(
      data::TensorDataset({{"x", Tensor::ones({32, 3})}, {"y", Tensor::zeros({32, 2})}}),
      {.batch = 32, .lanes = difference_lanes}, world);
  Said said;
  for (const data::Batch& batch : loader) try {
      (void)audit.backward(loader, batch, [&](const data::Batch& b) {
        const Tensor given = Tensor::zeros({b.lanes->count(), 3}, DType::f64);
        for (std::int64_t k = 0; k < given.size(0); ++k) {
          double* const row = given.data<double>() + 3 * k;
          row[0] = not_a_number;
          row[1] = static_cast<double>(b.lanes->first() + k);
          if (world.rank() == wrong) row[element] = value;
        }
        if (LaneRecord* record = LaneRecord::current()) record->note("mine", given);
        return nn::mse(model(b.x), b.y);
      });
    } catch (const dist::AuditError& error) {
      said = {error.what(), test::blamed_by(error)};
    }
  test::expect(audit.audits() == 1 && audit.steps() == 1, "{} audits", audit.audits());
  return said;
}

}  // namespace

TEST_SUITE_BEGIN("not-address");  // audits compute everything twice

TEST_CASE("audit: neither the steps between audits nor those before can be negative") {
  run_threads(1, {}, [](World& world) {
    nn::Sequential model{nn::Linear(3, 2)};
    dist::DistributedDataParallel ddp(model.parameters(), {}, world);
    for (const dist::AuditOptions& options : {dist::AuditOptions{.every = -1}, {.taken = -1}})
      test::expect_error<UsageError>("neither can be negative", [&] { dist::Audit(ddp, options); });
    test::expect(dist::Audit(ddp, {.every = 0, .taken = 5}).steps() == 5, "steps");
  });
}

TEST_CASE("audit: the bits count: zeros of both signs differ, a NaN is as another with its bits") {
  if (!test::on_cpu()) return;
  for (const int wrong : {0, 1, 2})
    run_threads(3, {}, [=](World& world) {
      const Said zero = audited_step(world, wrong, 2, -0.0);
      const char* const element = "element 2 of sum 1 over samples, of mine is ";
      const bool owner = contains(zero.message, fmt::format("{}-0 in the step of rank", element)) &&
                         contains(zero.message, ", and 0 as rank");
      const bool auditor = contains(zero.message, fmt::format("{}0 in the step of", element)) &&
                           contains(zero.message, ", and -0 as rank");
      test::expect(owner || auditor, "{}", zero.message);
      const Said nan = audited_step(world, wrong, 0, not_a_number);
      test::expect(nan.message == "", "{}", nan.message);
    });
}

TEST_CASE("audit: what the owner has used is that of the lane which is audited") {
  if (!test::on_cpu()) return;
  // Step 1 audits the second of the lanes that a rank owns.
  for (const int wrong : {0, 1})
    run_threads(2, {}, [=](World& world) {
      const Said said = audited_step(world, wrong, 2, 5);
      const int lane = lanes_of({wrong == 0 ? 0 : 1, 2}, difference_lanes).first + 1;
      const int other = lanes_of({wrong == 0 ? 1 : 0, 2}, difference_lanes).first + 1;
      test::expect(contains(said.message, fmt::format("lane {} wrongly", lane)) ||
                       contains(said.message, fmt::format("lane {} wrongly", other)),
                   "{}", said.message);
      test::expect(contains(said.message, "is 5 in the step of") ||
                       contains(said.message, "is 0 in the step of"),
                   "{}", said.message);
      const Said own = audited_step(world, wrong, 1, -1);
      for (int rank = 0; rank < 2; ++rank) {
        const int owned = lanes_of({rank, 2}, difference_lanes).first + 1;
        if (!contains(own.message, fmt::format("lane {} wrongly", owned))) continue;
        const std::string right = fmt::format("{} ", owned);
        test::expect(contains(own.message, "is " + right) || contains(own.message, "and " + right),
                     "{}", own.message);
      }
    });
}

TEST_CASE("audit: in a group the rank is named by its number in the job, and no rank is left") {
  if (!test::on_cpu()) return;
  for (int wrong = 0; wrong < 3; ++wrong)
    run_threads(5, {}, [=](World& world) {
      std::optional<World> group = world.split(world.rank() < 2 ? 0 : 1);
      if (world.rank() < 2) return;
      const Said said = audited_step(*group, wrong, 1, 77);
      const int in_job = 2 + wrong;
      test::expect(said.culprit.starts_with(fmt::format("rank {} computed wrongly (lane", in_job)),
                   "{} blames {}", said.message, said.culprit);
      test::expect(contains(said.message, fmt::format(": rank {} computed lane", in_job)), "{}",
                   said.message);
      test::expect(contains(said.message, fmt::format("ranks are against rank {}", in_job)), "{}",
                   said.message);
      test::expect(contains(said.message, fmt::format("in the step of rank {}, and ", in_job)) ||
                       contains(said.message, fmt::format("as rank {} computes it", in_job)),
                   "{}", said.message);
    });
}

TEST_SUITE_END();
