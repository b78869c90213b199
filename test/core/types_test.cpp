// DType, names, hashes, the errors, and the two values of shard.h.
#include <doctest/doctest.h>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"
#include "lockstep/core/hash.h"
#include "lockstep/core/shard.h"

namespace lockstep {
namespace {

TEST_CASE("dtype: sizes, names and C++ types belong together") {
  const auto agree = [](DType dtype, std::size_t bytes, std::string_view name, bool floating) {
    CHECK(size_of(dtype) == bytes);
    CHECK(name_of(dtype) == name);
    CHECK(fmt::format("{}", dtype) == name);
    CHECK(is_differentiable(dtype) == floating);
    visit_any(dtype, [&](auto zero) {
      CHECK(dtype_of<decltype(zero)>() == dtype);
      CHECK(sizeof(zero) == bytes);
      CHECK(static_cast<double>(zero) == 0);
    });
  };
  agree(DType::f32, 4, "f32", true);
  agree(DType::f64, 8, "f64", true);
  agree(DType::i64, 8, "i64", false);
  agree(DType::i32, 4, "i32", false);
  agree(DType::u8, 1, "u8", false);
  agree(DType::f16, 2, "f16", false);
  agree(DType::bf16, 2, "bf16", false);
}

TEST_CASE("names of enumerators, and of a value that is none") {
  CHECK(Device::name_of(Device::Kind::cpu) == "cpu");
  CHECK(Device::name_of(Device::Kind::sim) == "sim");
  CHECK(Device::name_of(Device::Kind::cuda) == "cuda");
  CHECK(name_of(static_cast<DType>(200)) == "?");
}

TEST_CASE("hash: FNV-1a's published values, in one piece or several") {
  CHECK(fnv1a("") == 0xcbf29ce484222325u);
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8cu);
  CHECK(fnv1a("foobar") == 0x85944171f73967e8u);
  CHECK(Fnv1a().add("foo").add("bar").value() == fnv1a("foobar"));
  CHECK(Fnv1a().add(0x3736353433323130u).value() == fnv1a("01234567"));
}

TEST_CASE("dtype: visit_floating refuses integers in the name of the operation") {
  const auto size = [](DType dtype) {
    return visit_floating("relu", dtype, [](auto zero) { return sizeof(zero); });
  };
  CHECK(size(DType::f32) == 4);
  CHECK(size(DType::f64) == 8);
  CHECK_THROWS_WITH_AS(size(DType::i64), "[relu] takes f32 or f64, got i64", DTypeError);
  CHECK_THROWS_AS(size(DType::u8), DTypeError);
}

TEST_CASE("error: one family, a message with both values") {
  check<ShapeError>(true, "[x] {}", 1);
  CHECK_THROWS_WITH_AS(check<ShapeError>(1 > 2, "[matmul] sizes differ: {} and {}", 64, 63),
                       "[matmul] sizes differ: 64 and 63", ShapeError);
  CHECK_THROWS_AS(fail<ShapeError>("[x]"), Error);
  CHECK_THROWS_AS(fail<DTypeError>("[x]"), Error);
  CHECK_THROWS_AS(fail<DeviceError>("[x]"), Error);
  CHECK_THROWS_AS(fail<DataError>("[x]"), Error);
  CHECK_THROWS_AS(fail<StateError>("[x]"), Error);
  CHECK_THROWS_AS(fail<UsageError>("[x]"), Error);
  CHECK_THROWS_AS(fail<CommError>("[x]"), Error);
  CHECK_THROWS_AS(fail<PeerError>("[x]"), CommError);
  CHECK_THROWS_AS(fail<Error>("[x]"), std::runtime_error);
}

TEST_CASE("shard and weight: a process alone") {
  CHECK(Shard{}.rank == 0);
  CHECK(Shard{}.size == 1);
  CHECK(Weight{3}.total == Weight::summed);
  const std::int64_t rows = 5;
  const std::uint16_t all = 128;
  CHECK(Weight{rows}.local == 5);
  CHECK(Weight{rows, all}.total == 128);
}

}  // namespace
}  // namespace lockstep
