// The text of tensors against PyTorch's (make_prints.py).
#include "lockstep/core/text/print.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/device.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

DType dtype_named(const std::string& name) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::i64, DType::i32, DType::u8, DType::f16, DType::bf16})
    if (name_of(dtype) == name) return dtype;
  FAIL("no dtype ", name);
  return {};
}

template <class T>
T element_of(const Json& value) {
  if constexpr (std::is_integral_v<T>) return value.get<T>();
  // strtod knows "nan" and "inf" too.
  return static_cast<T>(value.is_string() ? std::strtod(value.get<std::string>().c_str(), nullptr)
                                          : value.get<double>());
}

Tensor tensor_of(const Json& one) {
  const auto sizes = one["shape"].get<std::vector<std::int64_t>>();
  const Tensor result = Tensor::empty(Shape(sizes), dtype_named(one["dtype"]));
  visit_any(result.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t e = 0; e < result.numel(); ++e)
      result.data<T>()[e] =
          one.contains("values")
              ? element_of<T>(one["values"][static_cast<std::size_t>(e)])
              : static_cast<T>(one["from"].get<double>() +
                               one["step"].get<double>() * static_cast<double>(e));
  });
  return result;
}

TEST_CASE("print: tensors as PyTorch prints them") {
  const Json json = Json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/test/core/prints.json"));
  CHECK(json["cases"].size() > 90);
  for (const Json& one : json["cases"]) {
    const std::string text = to_string(tensor_of(one));
    CHECK(text == one["text"].get<std::string>());
  }
}

TEST_CASE("print: by fmt and by a stream, as part of another line") {
  const Tensor x = Tensor::of<float>({2}, {1, -2.5});
  CHECK(fmt::format("x = {}!", x) == "x = tensor([ 1.0000, -2.5000])!");
  std::ostringstream out;
  out << x << ' ' << Tensor();
  CHECK(out.str() == "tensor([ 1.0000, -2.5000]) tensor(undefined)");
}

TEST_CASE("print: shapes, dtypes and devices, by fmt and by a stream") {
  std::ostringstream out;
  out << Shape{2, 3} << DType::bf16 << Device{.kind = Device::Kind::cuda, .index = 1};
  CHECK(out.str() == "(2, 3)bf16cuda:1");
  CHECK(fmt::format("{}{}{}", Shape{2, 3}, DType::bf16, Device{}) == "(2, 3)bf16cpu");
}

TEST_CASE("print: a negative NaN has no sign, as in PyTorch") {
  CHECK(to_string(Tensor::of<float>({2}, {-std::nanf(""), 1})) == "tensor([nan, 1.])");
}

TEST_CASE("print: a tensor on a device is copied, and names it") {
  const Device device = test::test_device();
  const Tensor x = Tensor::of<std::int64_t>({3}, {1, 2, 3}).to(device);
  const Tensor none = Tensor::empty({0, 2}, DType::f64, device);
  if (test::on_cpu()) {
    CHECK(to_string(x) == "tensor([1, 2, 3])");
  } else {
    const std::string name = device.to_string();
    CHECK(to_string(x) == "tensor([1, 2, 3], device='" + name + "')");
    CHECK(to_string(none) == "tensor([], device='" + name + "', size=(0, 2), dtype=f64)");
  }
}

}  // namespace
}  // namespace lockstep
