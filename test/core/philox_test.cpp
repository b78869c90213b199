#include "lockstep/core/philox.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lockstep/core/generator.h"

using namespace lockstep;

namespace {

std::vector<std::uint32_t> words(const std::string& hex) {
  std::vector<std::uint32_t> result;
  for (std::size_t i = 0; i < hex.size(); i += 9)
    result.push_back(static_cast<std::uint32_t>(std::stoul(hex.substr(i, 8), nullptr, 16)));
  return result;
}

std::vector<std::uint32_t> words(const PhiloxBlock& block) {
  return {block.words, block.words + 4};
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the published outputs") {
  const auto published = nlohmann::json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/philox.json"));
  CHECK(published["random123"].size() == 3);
  for (const auto& vector : published["random123"]) {
    const auto counter = words(vector["counter"].get<std::string>());
    const auto key = words(vector["key"].get<std::string>());
    const PhiloxBlock block = philox4x32_10({{counter[0], counter[1], counter[2], counter[3]}},
                                            key[0] | std::uint64_t{key[1]} << 32);
    CHECK(words(block) == words(vector["output"].get<std::string>()));
  }
}

TEST_CASE("seed, offset, round and subsequence each change the outputs; offset is 4 rounds") {
  const auto block = [](PhiloxState state, std::int64_t round, std::int64_t subsequence) {
    return words(philox_block(state, round, subsequence));
  };
  const auto here = block({7, 8}, 1, 2);
  CHECK(block({8, 8}, 1, 2) != here);
  CHECK(block({7 + (std::uint64_t{1} << 32), 8}, 1, 2) != here);
  CHECK(block({7, 8}, 1, 3) != here);
  CHECK(block({7, 8}, 1, 2 + (std::int64_t{1} << 32)) != here);
  CHECK(block({7, 8}, 2, 2) != here);
  CHECK(block({7, 12}, 0, 2) == here);
  const std::uint64_t carry = std::uint64_t{4} << 32;
  CHECK(block({7, carry - 4}, 1, 2) == block({7, carry}, 0, 2));
  CHECK(block({7, carry}, 0, 2) != block({7, 0}, 0, 2));
}

TEST_CASE("the generator hands out pieces that do not overlap") {
  PhiloxGenerator generator(5);
  const auto offset_of = [&](std::int64_t n) { return generator.reserve(n).offset; };
  CHECK(offset_of(0) == 0);  // takes nothing
  CHECK(offset_of(1) == 0);
  CHECK(offset_of(4 * philox_threads) == 4);
  CHECK(offset_of(4 * philox_threads + 1) == 8);
  CHECK(offset_of(1) == 16);
  CHECK(generator.state().seed == 5);
  generator.set_state({6, 100});
  CHECK(generator.reserve(1).seed == 6);
  CHECK(generator.state().offset == 104);
  generator.manual_seed(9);
  CHECK(generator.reserve(1).seed == 9);
  CHECK(generator.state().offset == 4);
}

TEST_CASE("manual_seed seeds the thread's counter-based generator too") {
  manual_seed(3);
  default_philox().reserve(1);
  std::thread([] {
    CHECK(default_philox().state().seed == Generator::default_seed);
    manual_seed(4);
  }).join();
  CHECK(default_philox().state().seed == 3);
  CHECK(default_philox().state().offset == 4);
  manual_seed(3);
  CHECK(default_philox().state().offset == 0);
}
