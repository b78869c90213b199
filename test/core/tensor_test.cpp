#include "lockstep/core/tensor.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/device.h"

namespace lockstep {
namespace {

Tensor counting(const Shape& shape) {
  const Tensor result = Tensor::empty(shape);
  for (std::size_t i = 0; i < result.span<float>().size(); ++i)
    result.span<float>()[i] = static_cast<float>(i);
  return result;
}

TEST_CASE("tensor: making one") {
  const Tensor t = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(t.defined());
  CHECK(t.shape() == Shape{2, 3});
  CHECK(t.size(-1) == 3);
  CHECK(t.rank() == 2);
  CHECK(t.numel() == 6);
  CHECK(t.dtype() == DType::f32);
  CHECK(t.device() == Device{});
  CHECK(t.bytes() == 24);
  CHECK(t.to_vector<float>() == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(Tensor::zeros({3}, DType::i64).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{0, 0, 0});
  CHECK(Tensor::full({2}, 7, DType::u8).to_vector<std::uint8_t>() ==
        std::vector<std::uint8_t>{7, 7});
  CHECK(Tensor::from(std::vector<double>{3, 1, 2}).shape() == Shape{3});
  CHECK(Tensor::from(std::vector<std::int64_t>{3, 1}).to_vector<std::int64_t>()[1] == 1);
  CHECK(Tensor::scalar(2.5).shape() == Shape{});
  CHECK(Tensor::scalar(2.5, DType::f64).item() == 2.5);
  CHECK_THROWS_WITH_AS(Tensor::of<float>({2, 2}, {1, 2, 3}), "[tensor] 3 values for shape (2, 2)",
                       ShapeError);
}

TEST_CASE("tensor: undefined") {
  const Tensor t;
  CHECK_FALSE(t.defined());
  CHECK(t.numel() == 0);
  CHECK(t.bytes() == 0);
  CHECK(t.raw() == nullptr);
  CHECK(t.span<float>().empty());
  CHECK(t.dtype() == DType::f32);
  CHECK_THROWS_AS(t.item(), ShapeError);
  CHECK_THROWS_WITH_AS(t.shape(), "[shape] of an undefined tensor", StateError);
  CHECK_THROWS_WITH_AS(t.rank(), "[shape] of an undefined tensor", StateError);
  CHECK_THROWS_WITH_AS(t.size(0), "[shape] of an undefined tensor", StateError);
  CHECK_THROWS_WITH_AS(t.device(), "[device] of an undefined tensor", StateError);
  CHECK_THROWS_WITH_AS(t.view({0}), "[view] of an undefined tensor", StateError);
  CHECK_THROWS_WITH_AS(t.slice(0, 0), "[slice] of an undefined tensor", StateError);
  CHECK_THROWS_WITH_AS(t.clone(), "[clone] of an undefined tensor", StateError);
}

TEST_CASE("tensor: one element is read and set, whatever its dtype and device") {
  const auto check_all = [](DType dtype, Device device) {
    Tensor x = Tensor::empty({2, 3, 4}, dtype);
    visit_any(dtype, [&](auto zero) {
      for (std::int64_t e = 0; e < 24; ++e)
        x.data<decltype(zero)>()[e] = static_cast<decltype(zero)>(static_cast<float>(e));
    });
    x = x.to(device);
    CHECK(x.item({0, 0, 0}) == 0);
    CHECK(x.item({1, 2, 3}) == 23);
    CHECK(x.item({1, 0, 2}) == 14);
    CHECK(x.item({-1, -2, -4}) == 16);  // row 1, 1, 0
    CHECK(x.slice(1, 2).item({0, 0, 1}) == 13);
    x.set({0, -1, 1}, 77);
    CHECK(x.item({0, 2, 1}) == 77);
    CHECK(x.item({0, 2, 0}) == 8);
    CHECK(x.item({0, 2, 2}) == 10);
  };
  for (const DType dtype :
       {DType::f32, DType::f64, DType::i64, DType::i32, DType::u8, DType::f16, DType::bf16})
    check_all(dtype, test::test_device());
  const Tensor scalar = Tensor::scalar(2.5);
  scalar.set({}, 3.5);
  CHECK(scalar.item(std::initializer_list<std::int64_t>{}) == 3.5);
}

TEST_CASE("tensor: an element that does not exist is refused, by index and shape") {
  const Tensor x = counting({2, 3});
  CHECK_THROWS_WITH_AS(x.item({2, 0}),
                       "[item] there is no element (2, 0) in a tensor of shape (2, 3)", ShapeError);
  CHECK_THROWS_WITH_AS(x.set({0, -4}, 1),
                       "[set] there is no element (0, -4) in a tensor of shape (2, 3)", ShapeError);
  CHECK_THROWS_WITH_AS(x.item({1}), "[item] there is no element (1) in a tensor of shape (2, 3)",
                       ShapeError);
  CHECK_THROWS_AS(x.item({1, 1, 0}), ShapeError);
  CHECK_THROWS_AS(Tensor::zeros({0, 3}).item({0, 0}), ShapeError);
  CHECK_THROWS_WITH_AS(Tensor().item({0}), "[item] of an undefined tensor", StateError);
  CHECK_THROWS_WITH_AS(Tensor::zeros({1}, DType::u8).set({0}, 256),
                       "[set] an element of u8 cannot be 256", UsageError);
  CHECK(x.to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("tensor: rows share the elements, in order") {
  const Tensor x = counting({3, 2, 2});
  std::vector<float> firsts;
  for (const Tensor& row : x.rows()) {
    CHECK(row.shape() == Shape{2, 2});
    firsts.push_back(row.span<float>()[0]);
  }
  CHECK(firsts == std::vector<float>{0, 4, 8});
  x.rows()[1].fill(9);
  CHECK(x.to_vector<float>() == std::vector<float>{0, 1, 2, 3, 9, 9, 9, 9, 8, 9, 10, 11});
  CHECK(counting({4}).rows()[3].item() == 3);  // rows of a vector are scalars
  CHECK(Tensor::zeros({0, 5}).rows().empty());
  CHECK_THROWS_WITH_AS(Tensor::scalar(1).rows(), "[rows] of a scalar", ShapeError);
  CHECK_THROWS_WITH_AS(Tensor().rows(), "[rows] of an undefined tensor", StateError);
}

TEST_CASE("tensor: integers are filled with what they hold") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {2.9, -2.9, -0.5, 254.5})
    for (const DType dtype : {DType::u8, DType::i32, DType::i64})
      CHECK_THROWS_AS(Tensor::scalar(value, dtype), UsageError);
  CHECK(Tensor::scalar(255, DType::u8).item() == 255);
  CHECK(Tensor::scalar(-0x1p31, DType::i32).item() == -0x1p31);
  CHECK(Tensor::scalar(-0x1p63, DType::i64).item() == -0x1p63);
  CHECK_THROWS_WITH_AS(Tensor::full({2}, 256, DType::u8), "[fill] an element of u8 cannot be 256",
                       UsageError);
  CHECK_THROWS_WITH_AS(Tensor::full({2}, -1, DType::u8), "[fill] an element of u8 cannot be -1",
                       UsageError);
  CHECK_THROWS_AS(Tensor::full({2}, 0x1p31, DType::i32), UsageError);
  CHECK_THROWS_AS(Tensor::full({2}, 0x1p63, DType::i64), UsageError);
  for (const DType dtype : {DType::u8, DType::i32, DType::i64})
    for (const double value : {infinity, -infinity, std::nan("")})
      CHECK_THROWS_AS(Tensor::full({2}, value, dtype), UsageError);
  CHECK(Tensor::scalar(1e300).item() == infinity);
  CHECK(Tensor::scalar(-1e5, DType::f16).item() == -infinity);
  CHECK(std::isnan(Tensor::scalar(std::nan(""), DType::bf16).item()));
}

TEST_CASE("tensor: elements begin on a cache line") {
  for (std::int64_t n : {0, 1, 5, 1000})
    CHECK(reinterpret_cast<std::uintptr_t>(Tensor::empty({n}).raw()) % 64 == 0);
}

TEST_CASE("tensor: copies of the handle share, clone does not") {
  const Tensor t = Tensor::zeros({3});
  const Tensor shared = t, cloned = t.clone();
  t.data<float>()[1] = 8;
  CHECK(shared.data<float>()[1] == 8);
  CHECK(cloned.data<float>()[1] == 0);
}

TEST_CASE("tensor: views share the elements") {
  const Tensor t = counting({4, 3});
  const Tensor flat = t.view({12});
  CHECK(flat.raw() == t.raw());
  CHECK(t.view({2, 6}).shape() == Shape{2, 6});
  CHECK_THROWS_WITH_AS(t.view({5, 2}), "[view] (5, 2) does not have as many elements as (4, 3)",
                       ShapeError);

  const Tensor rows = t.slice(1, 3);
  CHECK(rows.shape() == Shape{2, 3});
  CHECK(rows.to_vector<float>() == std::vector<float>{3, 4, 5, 6, 7, 8});
  rows.slice(1, 2).fill(9);
  CHECK(t.slice(2, 3).to_vector<float>() == std::vector<float>{9, 9, 9});
  CHECK(t.slice(3, 4).to_vector<float>() == std::vector<float>{9, 10, 11});
  CHECK(t.slice(4, 4).shape() == Shape{0, 3});
  CHECK(t.slice(0, 4).raw() == t.raw());
  CHECK(Tensor::empty({0, 3}).slice(0, 0).shape() == Shape{0, 3});
  CHECK_THROWS_WITH_AS(t.slice(1, 5), "[slice] there are no rows 1..5 in (4, 3)", ShapeError);
  CHECK_THROWS_AS(t.slice(-1, 2), ShapeError);
  CHECK_THROWS_AS(t.slice(3, 2), ShapeError);
  CHECK_THROWS_AS(Tensor::scalar(1).slice(0, 1), ShapeError);
}

TEST_CASE("tensor: over a storage, at an offset") {
  const Storage storage = Storage::allocate(64);
  const Tensor t = Tensor::over(storage, 16, {3}, DType::i32);
  CHECK(t.raw() == storage.data() + 16);
  CHECK(t.slice(1, 3).raw() == storage.data() + 20);
  CHECK(Tensor::over(storage, 64, {0}, DType::f32).numel() == 0);
  CHECK_THROWS_WITH_AS(Tensor::over(storage, 56, {3}, DType::f32),
                       "[tensor] (3,) f32 needs 12 bytes from byte 56 on, of a storage of 64",
                       ShapeError);
  CHECK_THROWS_AS(Tensor::over(storage, ~std::size_t{0} - 3, {1}, DType::f32), ShapeError);
  CHECK_THROWS_WITH_AS(Tensor::over(storage, 2, {1}, DType::f32),
                       "[tensor] f32 cannot begin at byte 2", ShapeError);
  CHECK_THROWS_AS(Tensor::over({}, 0, {1}, DType::f32), StateError);
}

TEST_CASE("tensor: reading in another type than it has") {
  const Tensor t = Tensor::zeros({2});
  CHECK_THROWS_WITH_AS(t.data<double>(), "[data] a tensor of f32 is read as f64 (cast() converts)",
                       DTypeError);
  CHECK_THROWS_AS(t.span<std::int64_t>(), DTypeError);
  CHECK_THROWS_AS(t.to_vector<std::uint8_t>(), DTypeError);
}

TEST_CASE("tensor: item, whatever the type") {
  CHECK(Tensor::of<std::int64_t>({1}, {-3}).item() == -3);
  CHECK(Tensor::of<std::uint8_t>({1, 1}, {200}).item() == 200);
  CHECK_THROWS_WITH_AS(Tensor::zeros({2}).item(), "[item] needs one element, tensor has shape (2,)",
                       ShapeError);
  CHECK_THROWS_AS(Tensor::zeros({0}).item(), ShapeError);
}

TEST_CASE("tensor: fill and copy, of every type") {
  for (DType dtype : {DType::f32, DType::f64, DType::i64, DType::i32, DType::u8}) {
    CAPTURE(name_of(dtype));
    const Tensor source = Tensor::full({5}, 3, dtype), target = Tensor::zeros({5}, dtype);
    target.copy_from(source);
    CHECK(std::memcmp(target.raw(), source.raw(), source.bytes()) == 0);
    CHECK(target.slice(4, 5).item() == 3);
    target.fill_zero();
    CHECK(target.slice(4, 5).item() == 0);
    Tensor::empty({0}, dtype).fill(1);
    Tensor::empty({0}, dtype).copy_from(Tensor::empty({0}, dtype));
  }
  const Tensor t = counting({5});
  t.slice(1, 5).copy_from(t.slice(0, 4));  // overlapping
  CHECK(t.to_vector<float>() == std::vector<float>{0, 0, 1, 2, 3});
  CHECK_THROWS_WITH_AS(t.copy_from(counting({4})), "[copy] shapes differ: (5,) from (4,)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(t.copy_from(Tensor::zeros({5}, DType::f64)),
                       "[copy] dtypes differ: f32 from f64", DTypeError);
}

TEST_CASE("tensor: one that is recorded on a tape has no views, detached it has") {
  Tensor t = counting({2, 2});
  t.set_gradient_ref({5, nullptr});
  CHECK(t.gradient_ref().tape == 5);
  CHECK_THROWS_AS(t.view({4}), StateError);
  CHECK_THROWS_AS(t.slice(0, 1), StateError);
  CHECK(t.detach().gradient_ref().tape == GradientRef::nothing);
  CHECK(t.detach().view({4}).raw() == t.raw());
  CHECK_THROWS_AS(t.clone(), StateError);
}

TEST_CASE("tensor: a device that this build does not have") {
  CHECK_THROWS_AS(Tensor::empty({2}, DType::f32, {Device::Kind::cuda, 1}), DeviceError);
  CHECK((Device{Device::Kind::cuda, 1}).to_string() == "cuda:1");
  CHECK(Device{}.to_string() == "cpu");
}

TEST_CASE("tensor: arange, to the ends of i64, and of floating numbers") {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  using Whole = std::vector<std::int64_t>;
  CHECK(Tensor::arange(0, most, most).to_vector<std::int64_t>() == Whole{0});
  CHECK(Tensor::arange(most - 2, most, 2).to_vector<std::int64_t>() == Whole{most - 2});
  CHECK(Tensor::arange(3, -3, -2).to_vector<std::int64_t>() == Whole{3, 1, -1});
  CHECK(Tensor::arange(3, 3).numel() == 0);
  CHECK(Tensor::arange(3, 1).numel() == 0);
  CHECK_THROWS_AS(Tensor::arange(least, most), UsageError);
  CHECK_THROWS_AS(Tensor::arange(most, least, least), UsageError);
  CHECK_THROWS_AS(Tensor::arange(0, 1, 0), UsageError);
  CHECK_THROWS_AS(Tensor::arange(0, 1, 0.0), UsageError);
  CHECK(Tensor::arange(1, 0, -0.25).to_vector<float>() == std::vector<float>{1, 0.75, 0.5, 0.25});
  CHECK(Tensor::arange(1.5).to_vector<float>() == std::vector<float>{0, 1});
}

}  // namespace
}  // namespace lockstep
