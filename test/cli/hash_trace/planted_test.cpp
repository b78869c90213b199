// Hash traces of a program's own: a planted change is found where it was planted.

#include <doctest/doctest.h>

#include <bit>
#include <limits>

#include "lockstep/core/hash.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/hash_trace/compare.h"
#include "lockstep/tools/hash_trace/elements.h"
#include "support/small_models.h"
#include "support/temporary_folder.h"
#include "support/text.h"
#include "support/worlds.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::TemporaryFolder;

namespace {

using Record = dist::HashTraceOptions::Record;

/// What is planted in the step that counts from 1, on this rank: before its forward, or between its
/// backward and the optimizer.
struct Plant {
  std::function<void(nn::Module&, int step, int rank)> before_forward = [](auto&&...) {};
  std::function<void(nn::Module&, int step, int rank)> before_step = [](auto&&...) {};
};

constexpr int steps = 4;

void run(const std::string& file, int ranks, const Plant& plant = {},
         std::optional<Record> values = {}) {
  run_threads(ranks, {}, [&](World& world) {
    manual_seed(0);
    test::NormalizedNet model;
    const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    const dist::HashTrace trace(world, file, {.values = values});
    for (int step = 1; step <= steps; ++step) {
      plant.before_forward(model, step, world.rank());
      Tape tape;
      const std::int64_t begin = 12 * step + 6 * world.rank();
      tape.backward(test::loss_of(model, begin, begin + 6));
      plant.before_step(model, step, world.rank());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

void flip(const Tensor& tensor, std::int64_t i, int bit) {
  auto* const words = reinterpret_cast<std::uint64_t*>(tensor.raw());
  words[i] ^= std::uint64_t{1} << bit;
}

std::string difference(const std::string& a, const std::string& b) {
  const hashes::Comparison result = hashes::compare(a, b);
  CHECK_FALSE(result.equal);
  return result.text;
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  CAPTURE(text);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(contains(text, part));
  }
}

}  // namespace

TEST_CASE("hash trace: one bit of a parameter, in one step, is found with both values") {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    const std::string a = folder / "a", b = folder / "b";
    const Plant plant{.before_forward = [](nn::Module& model, int step, int) {
      if (step == 3) flip(model.state_dict().at("second.weight"), 5, 0);
    }};
    run(a, ranks);
    run(b, ranks);
    const hashes::Comparison same = hashes::compare(a, b);
    CAPTURE(same.text);
    CHECK(same.equal);
    CHECK(contains(same.text, "no difference in "));
    run(b, ranks, plant);
    expect_parts(difference(a, b), {"first difference: step 3, record 10",
                                    "  parameter 'second.weight', as linear uses it, f64 (2, 4)\n",
                                    "with --hash-values 3:10 as well\n"});
    run(a, ranks, {}, Record{3, 10});
    run(b, ranks, plant, Record{3, 10});
    expect_parts(difference(a, b), {"  at [1, 1]: 1 ulp apart; 1 of 8 elements differs\n",
                                    "records before it are equal"});
  }
}

TEST_CASE("hash trace: a gradient or a buffer that is changed is found") {
  const TemporaryFolder folder;
  const std::string a = folder / "a", b = folder / "b";
  run(a, 3);
  // All ranks change it alike: else DDP would find it.
  run(b, 3, {.before_step = [](nn::Module& model, int step, int) {
        if (step == 2) flip(model.parameters()[0].gradient(), 0, 52);
      }});
  expect_parts(difference(a, b),
               {"step 2, record ", "rank 0\n",
                "  gradient of 'first.weight', as the optimizer takes it, f64 (4, 3)\n"});
  run(b, 3, {.before_forward = [](nn::Module& model, int step, int rank) {
        if (step == 2 && rank == 0) flip(model.state_dict().at("norm.running_mean"), 2, 3);
      }});
  expect_parts(difference(a, b), {"step 2, record ", "  buffer 'norm.running_mean', f64 (4,)\n"});
}

TEST_CASE("hash trace: an end by an exception leaves a file that is cut off") {
  const TemporaryFolder folder;
  const std::string a = folder / "a", b = folder / "b";
  run(a, 1);
  CHECK_THROWS_AS(run(b, 1,
                      {.before_step =
                           [](nn::Module&, int step, int) {
                             if (step == 3) throw StateError("enough");
                           }}),
                  StateError);
  expect_parts(difference(a, b),
               {"no difference in ", "b is cut off after record ", "of step 3, "});
  CHECK(trace::here.watcher == nullptr);
}

TEST_CASE("hash trace: a thread has one, and what cannot be written is told to all ranks") {
  const TemporaryFolder folder;
  run_threads(1, {}, [&](World& world) {
    const dist::HashTrace trace(world, folder / "a");
    CHECK_THROWS_AS(dist::HashTrace(world, folder / "b"), StateError);
  });
  std::filesystem::create_directory(folder / "c.1");
  for (const std::string& message : test::messages_on_threads(
           2, [&](World& world) { const dist::HashTrace trace(world, folder / "c"); }))
    CHECK(contains(message, "[hash_trace] cannot write"));
}

TEST_CASE("hash trace: every bit counts in a hash") {
  std::vector<std::byte> bytes(29);
  const std::uint64_t zeros = hash_bytes(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    CHECK(hash_bytes(bytes) != zeros);
    for (std::size_t second = 0; second < bit; ++second) {  // two signs must not cancel each other
      bytes[second / 8] ^= std::byte{1} << second % 8;
      if (hash_bytes(bytes) == zeros) FAIL("bits ", bit, " and ", second);
      bytes[second / 8] ^= std::byte{1} << second % 8;
    }
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
  }
  CHECK(hash_bytes(std::span(bytes).first(28)) != zeros);
}

TEST_CASE("hash trace: elements are compared by their bits") {
  const auto hex = [](auto value) {
    std::string text;
    for (const std::byte byte : std::as_bytes(std::span(&value, 1)))
      text += fmt::format("{:02x}", byte);
    return text;
  };
  const auto said = [&](const std::string& dtype, auto a, auto b) {
    return hashes::first_different_element({dtype, {1, 2}, hex(decltype(a){}) + hex(a)},
                                           {dtype, {1, 2}, hex(decltype(a){}) + hex(b)}, "a", "bb");
  };
  CHECK(said("f32", 1.0F, std::nextafter(1.0F, 2.0F)) ==
        "  at [0, 1]: 1 ulp apart; 1 of 2 elements differs\n"
        "    a           1  0x3f800000\n"
        "    bb  1.0000001  0x3f800001\n");
  CHECK(contains(said("f64", 0.0, -0.0), "at [0, 1]: the sign of 0; "));
  CHECK(contains(said("f64", 0.0, -0.0), "    bb  -0  0x8000000000000000\n"));
  const float smallest = std::numeric_limits<float>::denorm_min();
  CHECK(contains(said("f32", smallest, -smallest), "at [0, 1]: 2 ulps apart; "));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto other_nan = std::bit_cast<float>(std::bit_cast<std::uint32_t>(nan) + 1);
  CHECK(contains(said("f32", nan, other_nan), "at [0, 1]: two NaNs, with other bits; "));
  CHECK(contains(said("f32", 1.0F, nan), "at [0, 1]; 1 of 2 elements differs\n"));
  CHECK(
      contains(said("i64", std::int64_t{-3}, std::int64_t{4}), "    a   -3  0xfffffffffffffffd\n"));
  CHECK(contains(said("u8", std::uint8_t{3}, std::uint8_t{200}), "    bb  200  0xc8\n"));
  CHECK(contains(said("bf16", BFloat16(1.0F), BFloat16(1.5F)), "64 ulps apart"));
  CHECK(contains(said("f16", Half(1.0F), Half(-1.0F)), "    bb  -1  0xbc00\n"));
  CHECK(said("f32", nan, nan) == "");
  CHECK(said("nosuch", 1.0F, 2.0F) == "");
  CHECK(hashes::first_different_element({"f32", {3}, hex(1.0F)}, {"f32", {3}, hex(2.0F)}, "", "") ==
        "");
}
