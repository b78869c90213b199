// Autocast: which operations round, what they give, and where a scope ends.
#include "lockstep/autograd/autocast.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/lanes.h"
#include "support/device.h"
#include "support/op_table.h"

using namespace lockstep;
using test::test_device;

namespace {

constexpr DType sixteen_bits[] = {DType::bf16, DType::f16};

bool is_product(const OpCase& op) {
  return op.name.starts_with("matmul") || op.name.starts_with("linear");
}

Tensor rounded(const Tensor& x, DType dtype) { return cast(cast(x, dtype), DType::f32); }

/// Weights of a value's elements, which no 16-bit dtype has.
Tensor weights_of(const Shape& shape) {
  const Tensor weights = Tensor::empty(shape);
  for (std::int64_t i = 0; i < weights.numel(); ++i)
    weights.data<float>()[i] = static_cast<float>(std::sin(1.0 + 0.7 * static_cast<double>(i)));
  return weights.to(test_device());
}

/// The value of a function, and the gradients of its weighted sum. Backward runs outside of the
/// scope.
std::vector<Tensor> value_and_gradients(const TensorFunction& function,
                                        const std::vector<Tensor>& operands, const Tensor& weights,
                                        DType autocast) {
  Tape tape;
  std::vector<Tensor> watched;
  for (const Tensor& x : operands) watched.push_back(tape.watch(x));
  Tensor y, loss;
  {
    const Autocast scope(autocast);
    y = function(watched);
    loss = sum(y * cast(weights, y.dtype()));
  }
  tape.backward(loss);
  std::vector<Tensor> all = {y.detach()};
  for (const Tensor& x : watched) all.push_back(tape.gradient(x));
  return all;
}

std::vector<Tensor> as(DType dtype, std::vector<Tensor> tensors) {
  for (Tensor& x : tensors) x = cast(x, dtype);
  return tensors;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor here = a.to(Device{}), there = b.to(Device{});
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(here.raw(), there.raw(), here.bytes()) == 0;
}

}  // namespace

TEST_CASE("autocast: products of rounded factors, added up in f32, forward and backward") {
  int products = 0;
  for (const DType dtype : sixteen_bits)
    for (const OpCase& op : op_table())
      for (const auto& shapes : op.shapes) {
        // The case of vectors multiplies one product's result with another's.
        if (!is_product(op) || op.name == "matmul of vectors") continue;
        INFO(title(op, shapes), " ", name_of(dtype));
        ++products;
        const std::vector<Tensor> x = operands(op, shapes, DType::f32, test_device());
        std::vector<Tensor> factors;
        for (std::size_t i = 0; i < x.size(); ++i)
          factors.push_back(i < 2 ? rounded(x[i], dtype) : x[i]);  // the third is the bias
        const Tensor weights = weights_of(op.function(x).shape());
        const auto got = value_and_gradients(op.function, x, weights, dtype);
        // All gradients take the rounded gradient of the result.
        const auto expected = value_and_gradients(op.function, as(DType::f64, factors),
                                                  rounded(weights, dtype), DType::f32);
        for (std::size_t i = 0; i < got.size(); ++i) {
          CAPTURE(i);
          CHECK(got[i].dtype() == DType::f32);
          CHECK(allclose(cast(got[i], DType::f64), expected[i], 1e-5, 1e-5));
        }
      }
  CHECK(products > 20);
}

TEST_CASE("autocast: every other operation, and other dtypes, keep their bits") {
  for (const DType dtype : sixteen_bits)
    for (const OpCase& op : op_table())
      for (const DType of : {DType::f32, DType::f64, DType::bf16}) {
        if (is_product(op) && of == DType::f32) continue;
        // A product takes other ways for other shapes: batches, vectors, matrices that repeat.
        const std::size_t all = is_product(op) ? op.shapes.size() : 1;
        for (std::size_t k = 0; k < all; ++k) {
          const auto& shapes = op.shapes[k];
          INFO(title(op, shapes), " ", name_of(of), " in ", name_of(dtype));
          const auto x = as(of, operands(op, shapes, DType::f32, test_device()));
          const Tensor weights = weights_of(op.function(x).shape());
          const auto inside = value_and_gradients(op.function, x, weights, dtype);
          const auto outside = value_and_gradients(op.function, x, weights, DType::f32);
          for (std::size_t i = 0; i < inside.size(); ++i) CHECK(same_bits(inside[i], outside[i]));
        }
      }
}

TEST_CASE("autocast: 16-bit operands are left alone, also where a matrix repeats") {
  const Tensor a = cast(Tensor::full({2, 2, 3}, 1e5), DType::bf16);
  const Tensor b = cast(Tensor::full({1, 3, 2}, 1e5), DType::bf16);
  const auto product = [&] { return cast(matmul(a, b), DType::f32).to_vector<float>(); };
  const std::vector<float> outside = product();
  const Autocast autocast(DType::f16);  // whose numbers end at 65504
  CHECK(product() == outside);
}

TEST_CASE("autocast: dot and outer keep their bits; the product of two vectors is rounded") {
  const Tensor a = Tensor::from({1.0001f, -2.3f, 0.7f}).to(test_device());
  const Tensor b = Tensor::from({0.3333f, 1.1f, 5.05f}).to(test_device());
  const std::vector<Tensor> outside{dot(a, b), outer(a, b), matmul(a, b)};
  for (const DType dtype : sixteen_bits) {
    const Autocast autocast(dtype);
    CHECK(same_bits(dot(a, b), outside[0]));
    CHECK(same_bits(outer(a, b), outside[1]));
    CHECK(!same_bits(matmul(a, b), outside[2]));
  }
}

TEST_CASE("autocast: scopes may end in any order") {
  std::optional<Autocast> first(std::in_place, DType::f32), second(std::in_place, DType::bf16);
  const std::optional<Autocast> third(std::in_place, DType::f16);
  first.reset();
  CHECK(Autocast::current() == DType::f16);
  second.reset();
  CHECK(Autocast::current() == DType::f16);
  {
    const Autocast inner(DType::bf16);
    CHECK(Autocast::current() == DType::bf16);
  }
  CHECK(Autocast::current() == DType::f16);
}

TEST_CASE("autocast: scopes nest, end with their block, and are their thread's") {
  CHECK(Autocast::current() == DType::f32);
  try {
    const Autocast outer(DType::bf16);
    CHECK(Autocast::current() == DType::bf16);
    {
      const Autocast inner(DType::f16);
      CHECK(Autocast::current() == DType::f16);
      const Autocast off(DType::f32);
      CHECK(Autocast::current() == DType::f32);
    }
    CHECK(Autocast::current() == DType::bf16);
    DType elsewhere = DType::bf16;
    std::thread([&] { elsewhere = Autocast::current(); }).join();
    CHECK(elsewhere == DType::f32);
    fail<Error>("out");
  } catch (const Error&) {
  }
  CHECK(Autocast::current() == DType::f32);
  for (const DType dtype : {DType::f64, DType::i64, DType::u8})
    CHECK_THROWS_AS(Autocast{dtype}, DTypeError);
  CHECK(Autocast::current() == DType::f32);
}

TEST_CASE("autocast: a recomputed block is computed as it was, wherever backward runs") {
  const OpCase op{"", {}, {}, -2, 2};
  const std::vector<Tensor> x = operands(op, {{5, 3}, {4, 3}, {2, 4}}, DType::f32, test_device());
  const TensorFunction block = [](std::span<const Tensor> v) {
    return linear(gelu(linear(v[0], v[1])), v[2]);
  };
  const TensorFunction again = [&](std::span<const Tensor> v) {
    return checkpoint(block, std::vector<Tensor>(v.begin(), v.end()));
  };
  const Tensor weights = weights_of({5, 2});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto plain = value_and_gradients(block, x, weights, dtype);
    const auto recomputed = value_and_gradients(again, x, weights, dtype);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], recomputed[i]));
    const Autocast around(dtype == DType::f32 ? DType::bf16 : DType::f32);
    Tape tape;
    const Tensor w = tape.watch(x[1]);
    Tensor y;
    {
      const Autocast scope(dtype);
      y = again(std::vector<Tensor>{x[0], w, x[2]});
    }
    tape.backward(sum(y * weights));
    CHECK(same_bits(tape.gradient(w), plain[2]));
  }
}

// Products on a GPU that round their factors themselves keep the f32 one for backward.
TEST_CASE("autocast: a factor that was changed before backward is refused, or its copy was kept") {
  const Tensor x = Tensor::full({3, 4}, 0.3, DType::f32, test_device());
  for (const int changed : {0, 1}) {
    CAPTURE(changed);
    Tape tape;
    const Tensor rows = x.clone(), weight = Tensor::full({2, 4}, 0.7, DType::f32, test_device());
    const Tensor a = tape.watch(rows), w = tape.watch(weight);
    Tensor loss;
    {
      const Autocast autocast(DType::bf16);
      loss = sum(linear(a, w));
    }
    (changed == 0 ? a : w).detach().fill(1);
    if (test::on_cpu()) {
      tape.backward(loss);
      CHECK(same_bits(tape.gradient(w), rounded(Tensor::full({2, 4}, 0.3), DType::bf16) * 3.0));
    } else {
      CHECK_THROWS_WITH_AS(tape.backward(loss), doctest::Contains("was changed in place"),
                           StateError);
    }
  }
}

// Whether their products do it depends on their number, which is another one on other ranks.
TEST_CASE("autocast: rows that are a part of a batch have their factors cast, on GPUs too") {
  if (test::on_cpu()) return;
  const auto casts = [](bool cut) {
    const auto launched = [] {
      const auto launches = gpu::kernel_launches();
      const auto at = launches.find("cast_kernel");
      return at == launches.end() ? 0 : at->second;
    };
    std::optional<LaneScope> scope;
    if (cut) scope.emplace(std::make_shared<const Lanes>(4, 2, Shard{}));
    Tape tape;
    const Tensor x = Tensor::full({4, 3}, 0.3, DType::f32, test_device());
    const Tensor w = tape.watch(Tensor::full({2, 3}, 0.7, DType::f32, test_device()));
    const Autocast autocast(DType::bf16);
    const auto before = launched();
    (void)linear(cut ? of_samples(x) : x, w);
    return launched() - before;
  };
  CHECK(casts(true) == 2);
  CHECK(casts(false) == 0);
}

TEST_CASE("autocast: f16 loses small gradients, and a scaled loss keeps them") {
  const Tensor x = Tensor::full({1, 1}, 1e-3, DType::f32, test_device());
  const Tensor value = Tensor::full({1, 1}, 0.5, DType::f32, test_device());
  const auto gradient = [&](double scale) {
    Tape tape;
    const Autocast autocast(DType::f16);
    const Tensor w = tape.watch(value);
    tape.backward(sum(linear(x, w)) * 1e-9 * scale);
    return tape.gradient(w).item() / scale;
  };
  CHECK(gradient(1) == 0);
  CHECK(gradient(65536) == doctest::Approx(1e-12).epsilon(2e-3));
  CHECK(std::isinf(gradient(1e30)));
}
