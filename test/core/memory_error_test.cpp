// Memory that is not to be had: each error is one of ours, and says how many bytes, and for what.

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <fstream>
#include <functional>
#include <regex>
#include <string>

#include "lockstep/core/memory.h"
#include "lockstep/core/tensor.h"

using namespace lockstep;

namespace {

std::string memory_error_of(const std::function<void()>& asks) {
  try {
    asks();
  } catch (const MemoryError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("memory: what is not to be had is named, with its size") {
  if (!memory::caching) return;                     // AddressSanitizer ends the process
  const std::int64_t many = std::int64_t{1} << 50;  // elements: more than any address space
  CHECK(memory_error_of([] {
          memory::allocate(std::size_t{1} << 60);
        }).starts_with("[memory] out of memory: 1152921504606846976 bytes were asked for; "));
  CHECK(memory_error_of([&] {
          Tensor::empty({many, 2}, DType::f64);
        }).starts_with("[tensor] f64 of shape (1125899906842624, 2): [memory] out of memory: 180"));
  const std::function<void()> makers[] = {
      [&] { Tensor::zeros({many}); },        [&] { Tensor::full({many}, 1); },
      [&] { Tensor::arange(0, many, 1); },   [&] { Tensor::randn({many}); },
      [&] { Tensor::linspace(0, 1, many); }, [&] { Tensor::eye(1 << 25); },
      [&] { Tensor::randperm(many); },       [&] { Tensor::randint(3, {many}); }};
  for (const auto& maker : makers)
    CHECK(std::regex_search(memory_error_of(maker),
                            std::regex("^\\[tensor\\] \\w+ of shape \\(.*\\): \\[memory\\] out of "
                                       "memory: [0-9]+ bytes were asked for; ")));
}

TEST_CASE("memory: a product of sizes that no number holds is refused as a shape") {
  const std::int64_t large = std::int64_t{1} << 40;
  CHECK_THROWS_WITH_AS(Tensor::empty({large, large}),
                       "[shape] (1099511627776, 1099511627776) has more than 2^59 elements",
                       ShapeError);
  CHECK_THROWS_AS(Tensor::eye(std::int64_t{1} << 62), ShapeError);
  CHECK_THROWS_AS(Tensor::zeros({-1}), ShapeError);
}

TEST_CASE("memory: a vector that cannot be had for the elements is named, too") {
  if (!memory::caching) return;
  const Tensor x = Tensor::empty({1 << 26});  // no page of it is touched
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = pages * 4096 + (std::uint64_t{64} << 20);
  REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  const std::string message = memory_error_of([&] { (void)x.to_vector<float>(); });
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(message ==
        "[to_vector] f32 of shape (67108864,): out of memory: 268435456 bytes were asked for");
}

TEST_CASE("memory: the limit of ulimit -v is named") {
  if (!memory::caching) return;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = std::uint64_t{64} << 30;
  REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  const std::string message = memory_error_of([] { Tensor::empty({std::int64_t{1} << 35}); });
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(message.find("137438953536 bytes were asked for") != std::string::npos);
  CHECK(message.find("68719476736 bytes of addresses (ulimit -v)") != std::string::npos);
}
