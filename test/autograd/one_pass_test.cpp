// cross_entropy writes its gradient in forward, with a guess of what backward begins with. The bits
// are those of two passes, whatever the guess was.
#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/kernels/loss.h"
#include "support/device.h"

namespace one_pass_cases {
namespace {

using namespace lockstep;
using test::test_device;

struct Rows {
  Tensor logits, labels;
};

Rows rows_of(std::int64_t rows, std::int64_t columns, DType dtype) {
  manual_seed(static_cast<std::uint64_t>(rows * 7 + columns));
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < rows; ++i) labels.push_back((i * 5 + 2) % columns);
  return {cast(Tensor::randn({rows, columns}), dtype).to(test_device()),
          Tensor::from(labels).to(test_device())};
}

std::vector<std::byte> bytes(const Tensor& x) {
  const Tensor here = x.detach().to(Device{});
  return {here.raw(), here.raw() + static_cast<std::size_t>(here.numel()) * size_of(here.dtype())};
}

/// By the two kernels, one after the other.
Tensor in_two_passes(const Rows& of, double seed) {
  const Tensor like = Tensor::empty(of.logits.shape(), of.logits.dtype(), of.logits.device());
  const Tensor loss = Tensor::empty({}, like.dtype(), like.device());
  kernels::cross_entropy(of.logits, of.labels, loss, like);
  kernels::cross_entropy_backward(Tensor::full({}, seed, like.dtype(), like.device()), like, like,
                                  false);
  return like;
}

/// The gradient of one backward with this weight.
Tensor gradient(const Rows& of, Weight weight) {
  Tape tape;
  const Tensor x = tape.watch(of.logits);
  tape.backward(cross_entropy(x, of.labels), weight);
  return tape.gradient(x);
}

std::uint64_t launches(const std::string& kernel) { return gpu::kernel_launches()[kernel]; }

}  // namespace

TEST_CASE("cross_entropy: one pass has the bits of two, whatever was backward before") {
  const Weight weights[] = {{1, 1}, {1, 3}, {1, 3}, {2, 7}, {2, 7}, {1, 1}, {1, 1}, {0, 3}, {1, 3}};
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, 3}, {1, 1}, {3, 10}, {49, 7}, {33, 1025}, {2, 33000}}) {
      CAPTURE(dtype);
      CAPTURE(rows);
      CAPTURE(columns);
      const Rows of = rows_of(rows, columns, dtype);
      for (const Weight& weight : weights)
        CHECK(bytes(gradient(of, weight)) == bytes(in_two_passes(of, weight.local / weight.total)));
    }
}

TEST_CASE("cross_entropy: a right guess leaves backward nothing to launch") {
  if (test::on_cpu()) return;
  const Rows of = rows_of(33, 10, DType::f32);
  (void)gradient(of, {1, 5});
  const std::string kernels[] = {"cross_entropy_kernel", "cross_entropy_backward_kernel",
                                 "fill_kernel"};
  std::vector<std::uint64_t> before, after;
  for (const std::string& kernel : kernels) before.push_back(launches(kernel));
  (void)gradient(of, {1, 5});
  for (const std::string& kernel : kernels) after.push_back(launches(kernel));
  CHECK(after[0] == before[0] + 1);
  CHECK(after[1] == before[1]);
  CHECK(after[2] == before[2]);
}

TEST_CASE("cross_entropy: a thread has its own guess, and a new one begins with 1") {
  const Rows of = rows_of(9, 5, DType::f32);
  const std::vector<std::byte> one = bytes(in_two_passes(of, 1));
  (void)gradient(of, {1, 2});
  std::vector<std::byte> seen;
  std::thread([&] { seen = bytes(gradient(of, {1, 1})); }).join();
  CHECK(seen == one);
}

TEST_CASE("cross_entropy: a loss that other operations change has the bits of two passes") {
  const Rows of = rows_of(21, 6, DType::f32);
  for (int turn = 0; turn < 3; ++turn) {
    CAPTURE(turn);
    Tape tape;
    const Tensor x = tape.watch(of.logits);
    tape.backward(cross_entropy(x, of.labels) * 0.375);
    CHECK(bytes(tape.gradient(x)) == bytes(in_two_passes(of, 0.375)));
    (void)gradient(of, turn == 0 ? Weight{1, 1} : Weight{3, 8});
  }
}

TEST_CASE("cross_entropy: a retained backward, and a gradient that is written into, repeat") {
  const Rows of = rows_of(21, 6, DType::f32);
  Tape tape;
  const Tensor x = tape.watch(of.logits);
  const Tensor loss = cross_entropy(x, of.labels);
  for (const double seed : {1.0, 0.5, 0.5, 1.0}) {
    CAPTURE(seed);
    tape.backward(loss, Weight{seed, 1}, {.retain = true});
    Tensor seen = tape.gradient(x);
    CHECK(bytes(seen) == bytes(in_two_passes(of, seed)));
    seen.fill(7);
  }
}

TEST_CASE("cross_entropy: two losses of one tensor are added, whatever was backward before") {
  const Rows of = rows_of(21, 6, DType::f32), other = rows_of(21, 6, DType::f32);
  std::vector<std::byte> first;
  for (const Weight& before : {Weight{1, 1}, Weight{1, 1}, Weight{1, 4}}) {
    (void)gradient(of, before);
    Tape tape;
    const Tensor x = tape.watch(of.logits);
    tape.backward(cross_entropy(x, of.labels) + cross_entropy(x * 2.0, other.labels));
    if (first.empty()) first = bytes(tape.gradient(x));
    CHECK(bytes(tape.gradient(x)) == first);
  }
}

TEST_CASE("cross_entropy: logits and labels that change before backward are refused, always") {
  for (const Weight& before : {Weight{1, 1}, Weight{1, 4}}) {
    Rows of = rows_of(21, 6, DType::f32);
    (void)gradient(of, before);
    for (Tensor* const changed : {&of.logits, &of.labels}) {
      Tape tape;
      const Tensor loss = cross_entropy(tape.watch(of.logits), of.labels);
      changed->fill(1);
      CHECK_THROWS_AS(tape.backward(loss, Weight{1, 1}), StateError);
    }
  }
}

}  // namespace one_pass_cases
