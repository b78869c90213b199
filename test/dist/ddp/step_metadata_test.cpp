// What the ranks' step metadata come to, as a pure function.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <functional>
#include <random>

#include "lockstep/dist/ddp/step_exchange.h"

using namespace lockstep;
using namespace lockstep::dist;
using Divisor = Contribution::Divisor;

namespace {
StepMetadata contributes(double weight, double divisor, Divisor kind) {
  StepMetadata message;
  message.weight = weight;
  message.divisor = divisor;
  message.kind = kind;
  return message;
}
const StepMetadata nothing = contributes(0, 1, Divisor::none);
}  // namespace

TEST_CASE_TEMPLATE("a message survives being summed with zeros, to the last bit", T, float,
                   double) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::array<std::uint16_t, metadata_elements> raw;
    for (auto& piece : raw) piece = static_cast<std::uint16_t>(random());
    const auto message = std::bit_cast<StepMetadata>(raw);
    std::array<T, metadata_elements> sum{}, zeros{};
    to_elements<T>(message, sum);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = zeros[i] + sum[i] + zeros[i];
    CHECK(std::bit_cast<std::array<std::uint16_t, metadata_elements>>(from_elements<T>(sum)) ==
          raw);
  }
}

TEST_CASE("the sum is scaled to the mean") {
  using V = std::vector<StepMetadata>;
  // The total was known: the sum is the mean already.
  CHECK(decide_step(V{contributes(3, 8, Divisor::given), contributes(5, 8, Divisor::given)},
                    NonFinite::ignore)
            .scale == 1);
  // Weights to be summed.
  const StepOutcome tokens = decide_step(
      V{contributes(3, 1, Divisor::summed), nothing, contributes(5, 1, Divisor::summed)},
      NonFinite::ignore);
  CHECK(tokens.scale == 0.125);
  CHECK(tokens.weight == 8);
  CHECK(tokens.source == 0);
  // The mean over ranks: over those that had data.
  CHECK(decide_step(V(3, contributes(1, 3, Divisor::ranks)), NonFinite::ignore).scale == 1);
  const StepOutcome joined = decide_step(
      V{nothing, contributes(1, 4, Divisor::ranks), nothing, contributes(1, 4, Divisor::ranks)},
      NonFinite::ignore);
  CHECK(joined.scale == 2);
  CHECK(joined.source == 1);
  CHECK(decide_step(V(2, nothing), NonFinite::ignore).verdict == StepVerdict::commit);
}

TEST_CASE("weights that do not fit together are a problem that names both ranks") {
  const StepOutcome a = decide_step(
      std::vector{nothing, contributes(2, 1, Divisor::summed), contributes(3, 8, Divisor::given)},
      NonFinite::ignore);
  CHECK(a.verdict == StepVerdict::stop);
  CHECK(a.problem.find("rank 1 gave weight 2 of a total to be summed, rank 2 gave weight 3 of a "
                       "total of 8") != std::string::npos);
  const StepOutcome totals =
      decide_step(std::vector{contributes(2, 4, Divisor::given), contributes(2, 5, Divisor::given)},
                  NonFinite::ignore);
  CHECK(totals.problem.find("rank 0 gave weight 2 of a total of 4, rank 1 gave weight 2 of a total "
                            "of 5") != std::string::npos);
}

TEST_CASE("layouts that differ are a problem, also where nobody contributes") {
  std::vector<StepMetadata> messages(3, nothing);
  messages[2].layout_digest = 7;
  CHECK(decide_step(messages, NonFinite::ignore).problem ==
        "ranks 0 and 2 have different bucket layouts");
}

TEST_CASE("ranks that stepped differently, or zeroed their gradients on some only, are told") {
  std::vector<StepMetadata> messages(3, contributes(1, 3, Divisor::ranks));
  messages[1].steps_digest = 5;
  CHECK(decide_step(messages, NonFinite::ignore)
            .problem.find("ranks 0 and 1 did not take the same") == 0);
  messages[1].steps_digest = 0;
  messages[2].already_reduced = 1;
  CHECK(decide_step(messages, NonFinite::ignore)
            .problem.find(
                "the gradients of rank 2 hold what the last backward left, those of rank 0") == 0);
}

TEST_CASE("a total that counted a rank which has joined since is corrected") {
  std::vector<StepMetadata> messages = {contributes(32, 64, Divisor::given), nothing};
  CHECK(decide_step(messages, NonFinite::ignore).scale == 1);  // given is given
  messages[1].joined = 1;
  CHECK(decide_step(messages, NonFinite::ignore).scale == 2);
}

TEST_CASE("a gradient that is not finite: the verdict is the policy's") {
  std::vector<StepMetadata> messages(3, contributes(1, 3, Divisor::ranks));
  messages[1].bad_parameter = 4;
  CHECK(decide_step(messages, NonFinite::ignore).verdict == StepVerdict::commit);
  CHECK(decide_step(messages, NonFinite::skip).verdict == StepVerdict::skip);
  const StepOutcome stop = decide_step(messages, NonFinite::stop);
  CHECK(stop.verdict == StepVerdict::stop);
  CHECK(stop.bad_rank == 1);
  CHECK(stop.problem.empty());
}

TEST_CASE("every rank counts alike: whichever one differs, rank 0 included") {
  for (const std::size_t size : {2u, 3u, 4u, 7u})
    for (std::size_t odd = 0; odd < size; ++odd) {
      CAPTURE(size);
      CAPTURE(odd);
      const double total = static_cast<double>(size);
      const std::vector<StepMetadata> alike(size, contributes(1, total, Divisor::ranks));
      const auto outcome = [&](auto change) {
        std::vector<StepMetadata> messages = alike;
        change(messages[odd]);
        return decide_step(messages, NonFinite::stop);
      };
      const std::size_t seen = odd == 0 ? 1 : odd;  // the others are compared with rank 0
      CHECK(decide_step(alike, NonFinite::stop).verdict == StepVerdict::commit);
      const StepOutcome replicas = outcome([](StepMetadata& m) { m.replica_fingerprint = 9; });
      CHECK(replicas.replicas_differ);
      CHECK(replicas.verdict == StepVerdict::stop);
      CHECK(outcome([](StepMetadata& m) { m.layout_digest = 9; }).problem ==
            fmt::format("ranks 0 and {} have different bucket layouts", seen));
      CHECK(outcome([](StepMetadata& m) {
              m.steps_digest = 9;
            }).problem.find(fmt::format("ranks 0 and {} did not take", seen)) == 0);
      for (const bool forgotten : {true, false}) {  // by this rank alone, or by all others
        std::vector<StepMetadata> messages = alike;
        for (std::size_t r = 0; r < size; ++r)
          messages[r].already_reduced = (r == odd) == forgotten ? 1 : 0;
        const bool by_rank_0 = messages[0].already_reduced == 1;
        CHECK(decide_step(messages, NonFinite::stop)
                  .problem.find(fmt::format("the gradients of rank {} hold what the last backward "
                                            "left, those of rank {} were zeroed",
                                            by_rank_0 ? 0 : seen, by_rank_0 ? seen : 0)) == 0);
      }
      // Data are compared among those that say something of it.
      for (std::size_t first = 0; first < odd; ++first) {
        std::vector<StepMetadata> messages = alike;
        messages[first].origin.deal_digest = 5;
        messages[odd].origin.deal_digest = 6;
        CHECK(decide_step(messages, NonFinite::stop)
                  .problem.find(fmt::format("ranks {} and {} deal the data", first, odd)) == 0);
      }
    }
}

TEST_CASE("of several ranks with bad gradients the first is named, whatever the parameters") {
  for (const std::size_t size : {2u, 3u, 4u, 7u})
    for (std::size_t first = 0; first < size; ++first)
      for (std::size_t second = first; second < size; ++second) {
        std::vector<StepMetadata> messages(size, contributes(1, 1, Divisor::summed));
        messages[second].bad_parameter = 3;
        messages[first].bad_parameter = 0;
        const StepOutcome outcome = decide_step(messages, NonFinite::stop);
        CHECK(outcome.verdict == StepVerdict::stop);
        CHECK(outcome.bad_rank == static_cast<int>(first));
      }
}

TEST_CASE("what was synchronized cannot be rescaled") {
  std::vector<StepMetadata> messages = {contributes(1, 2, Divisor::ranks), nothing};
  messages[0].already_reduced = messages[1].already_reduced = 1;
  CHECK(decide_step(messages, NonFinite::ignore).problem.find("cannot be added to") !=
        std::string::npos);
  messages[1] = contributes(1, 2, Divisor::ranks);
  messages[1].already_reduced = 1;
  CHECK(decide_step(messages, NonFinite::ignore).verdict == StepVerdict::commit);
}

TEST_CASE("all have joined when all say so") {
  std::vector<StepMetadata> messages(3, nothing);
  messages[0].joined = messages[2].joined = 1;
  CHECK(!decide_step(messages, NonFinite::ignore).all_joined);
  messages[1].joined = 1;
  CHECK(decide_step(messages, NonFinite::ignore).all_joined);
}

TEST_CASE("every field of the metadata, changed on one rank, has the effect that it is for") {
  enum class Effect { none, problem, replicas, bad, weight, joined };
  using Change = std::function<void(StepMetadata&)>;
  // A new field makes this fail to compile (unless it replaces `unused`): add it below.
  [[maybe_unused]] const auto& [weight, divisor, compute, wait, layout, origin, steps, replicas,
                                element, parameter, kind, reduced, joined, unused] = nothing;
  const std::vector<std::pair<Change, Effect>> changes = {
      {[](StepMetadata& m) { m.weight += 2; }, Effect::weight},
      {[](StepMetadata& m) { m.divisor += 1; }, Effect::problem},
      {[](StepMetadata& m) { m.compute_seconds = 3; }, Effect::none},
      {[](StepMetadata& m) { m.wait_seconds = 3; }, Effect::none},
      {[](StepMetadata& m) { m.layout_digest ^= 1; }, Effect::problem},
      {[](StepMetadata& m) { m.layout_digest ^= 1ull << 63; }, Effect::problem},
      {[](StepMetadata& m) { m.steps_digest ^= 1; }, Effect::problem},
      {[](StepMetadata& m) { m.steps_digest ^= 1ull << 63; }, Effect::problem},
      {[](StepMetadata& m) { m.origin.deal_digest ^= 1; }, Effect::problem},
      {[](StepMetadata& m) { m.origin.step += 1; }, Effect::problem},
      {[](StepMetadata& m) { m.origin.part = static_cast<std::uint16_t>(m.origin.part ? 0 : 1); },
       Effect::problem},
      {[](StepMetadata& m) { m.origin.parts += 1; }, Effect::problem},
      {[](StepMetadata& m) { m.replica_fingerprint ^= 1; }, Effect::replicas},
      {[](StepMetadata& m) { m.replica_fingerprint ^= 1ull << 63; }, Effect::replicas},
      {[](StepMetadata& m) { m.bad_parameter = 0; }, Effect::bad},
      {[](StepMetadata& m) { m.kind = Divisor::summed; }, Effect::problem},
      {[](StepMetadata& m) { m.already_reduced ^= 1; }, Effect::problem},
      {[](StepMetadata& m) { m.joined = 1; }, Effect::joined},
  };
  for (const std::size_t size : {2u, 3u, 4u, 7u})
    for (std::size_t odd = 0; odd < size; ++odd)
      for (std::size_t c = 0; c < changes.size(); ++c)
        for (const std::uint8_t already_reduced : {0, 1}) {
          CAPTURE(size);
          CAPTURE(odd);
          CAPTURE(c);
          std::vector<StepMetadata> messages(
              size, contributes(1, static_cast<double>(size), Divisor::given));
          for (std::size_t r = 0; r < size; ++r) {
            messages[r].origin = {.deal_digest = 6,
                                  .step = 4,
                                  .part = static_cast<std::uint16_t>(r),
                                  .parts = static_cast<std::uint16_t>(size)};
            messages[r].already_reduced = already_reduced;
          }
          const StepOutcome alike = decide_step(messages, NonFinite::stop);
          CHECK(alike.verdict == StepVerdict::commit);
          CHECK_FALSE(alike.all_joined);
          changes[c].first(messages[odd]);
          const Effect effect = changes[c].second;
          for (const NonFinite policy :
               {NonFinite::report, NonFinite::ignore, NonFinite::skip, NonFinite::stop}) {
            const StepOutcome outcome = decide_step(messages, policy);
            CHECK(outcome.problem.empty() == (effect != Effect::problem));
            CHECK(outcome.replicas_differ == (effect == Effect::replicas));
            CHECK(outcome.nonfinite == (effect == Effect::bad));
            if (effect == Effect::bad) CHECK(outcome.bad_rank == static_cast<int>(odd));
            CHECK(outcome.weight == alike.weight + (effect == Effect::weight ? 2 : 0));
            CHECK(outcome.source == 0);
            CHECK(outcome.scale == 1);
            const bool stops = effect == Effect::problem || effect == Effect::replicas ||
                               (effect == Effect::bad &&
                                (policy == NonFinite::stop || policy == NonFinite::report));
            const bool skips = effect == Effect::bad && policy == NonFinite::skip;
            CHECK(outcome.verdict == (stops   ? StepVerdict::stop
                                      : skips ? StepVerdict::skip
                                              : StepVerdict::commit));
          }
          for (StepMetadata& m : messages) m.joined = 1;
          CHECK(decide_step(messages, NonFinite::ignore).all_joined);
        }
}

TEST_CASE("which ranks stand against each other: by the first field that differs, whichever") {
  using Change = std::function<void(StepMetadata&)>;
  const std::vector<Change> changes = {[](StepMetadata& m) { m.layout_digest ^= 1; },
                                       [](StepMetadata& m) { m.steps_digest ^= 1; },
                                       [](StepMetadata& m) { m.origin.parts ^= 1; },
                                       [](StepMetadata& m) { m.origin.deal_digest ^= 1; },
                                       [](StepMetadata& m) { m.origin.step ^= 1; },
                                       [](StepMetadata& m) { m.already_reduced ^= 1; },
                                       [](StepMetadata& m) { m.kind = Divisor::summed; },
                                       [](StepMetadata& m) { m.divisor += 1; }};
  for (const std::size_t size : {3u, 5u})
    for (std::size_t odd = 0; odd < size; ++odd)
      for (std::size_t c = 0; c < changes.size(); ++c) {
        CAPTURE(c);
        std::vector<StepMetadata> messages(size, contributes(1, 3, Divisor::ranks));
        CHECK(sides(messages).empty());
        changes[c](messages[odd]);
        // Another rank differs in what is looked at later.
        if (c < 6) changes.back()(messages[(odd + 1) % size]);
        const auto found = sides(messages);
        REQUIRE(found.size() == 2);
        const std::size_t small = found[0].second.size() == 1 ? 0 : 1;
        CHECK(found[small].second == std::vector<int>{static_cast<int>(odd)});
        CHECK(found[1 - small].second.size() == size - 1);
      }
}

TEST_CASE("a total corrected for a rank without data: only if that rank is missing in it") {
  for (const std::size_t size : {2u, 3u, 5u})
    for (std::size_t odd = 0; odd < size; ++odd) {
      // The others have been told the total of those that are left.
      std::vector<StepMetadata> messages(
          size, contributes(2, 2 * static_cast<double>(size - 1), Divisor::given));
      messages[odd] = nothing;
      messages[odd].joined = 1;
      CHECK(decide_step(messages, NonFinite::ignore).scale == 1);
      CHECK(decide_step(messages, NonFinite::ignore).source == (odd == 0 ? 1 : 0));
      for (StepMetadata& m : messages) m.already_reduced = 1;
      CHECK(decide_step(messages, NonFinite::ignore).problem == "");
      // Several shards on a rank: parts are not compared.
      messages[odd].origin.parts = BatchOrigin::several;
      for (std::size_t r = 0; r < size; ++r)
        if (r != odd) messages[r].origin = {.deal_digest = 0, .part = 1, .parts = 3};
      CHECK(decide_step(messages, NonFinite::ignore).problem == "");
    }
}

TEST_CASE(
    "a total that is larger or smaller than all weights is the caller's, where all have data") {
  for (const double total : {2.0, 5.0, 9.0}) {
    std::vector<StepMetadata> messages(3, contributes(2, total, Divisor::given));
    CHECK(decide_step(messages, NonFinite::ignore).scale == 1);
    messages[2].joined = 1;  // it still had some: the others knew of it
    CHECK(decide_step(messages, NonFinite::ignore).scale == (total > 6 ? total / 6 : 1));
  }
}

TEST_CASE("origins: who says nothing of its batch contradicts nobody, and ends no window") {
  for (const std::size_t silent : {0u, 1u, 2u}) {
    std::vector<StepMetadata> messages(3, contributes(1, 3, Divisor::ranks));
    for (std::size_t r = 0; r < 3; ++r)
      if (r != silent)
        messages[r].origin = {.deal_digest = 5,
                              .step = -2,
                              .part = static_cast<std::uint16_t>(r == 2 ? 0 : r),
                              .parts = 3};
    if (silent == 0) CHECK(decide_step(messages, NonFinite::ignore).problem == "");
    CHECK_FALSE(windows_are_ragged(messages));
    messages[silent == 2 ? 1 : 2].origin.step = -3;
    CHECK(windows_are_ragged(messages));
  }
  // A part that is another rank's, which itself says nothing.
  std::vector<StepMetadata> messages(2, contributes(1, 2, Divisor::ranks));
  messages[1].origin = {.deal_digest = 5, .step = 1, .part = 0, .parts = 2};
  CHECK(decide_step(messages, NonFinite::ignore).problem == "");
  messages[0].origin = {.deal_digest = 5, .step = 1, .part = 0, .parts = 2};
  CHECK(decide_step(messages, NonFinite::ignore).problem.find("both took part 0 of 2") !=
        std::string::npos);
}
