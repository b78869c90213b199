#include "lockstep/dist/transport/byte_ring.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <thread>
#include <vector>

using namespace lockstep::dist;

namespace {

struct alignas(64) Memory {
  std::byte bytes[ByteRing::bytes_needed(64)]{};
};

std::vector<std::byte> numbers(std::size_t begin, std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = begin; i < begin + count; ++i) bytes.push_back(std::byte(i * 7 % 251));
  return bytes;
}

}  // namespace

TEST_CASE("a byte ring takes what fits, gives what is there, and wraps") {
  Memory memory;
  ByteRing producer(&memory, 64), consumer(&memory, 64);
  std::vector<std::byte> out(100);

  CHECK(consumer.read(out) == 0);
  CHECK(producer.write(numbers(0, 100)) == 64);
  CHECK(producer.write(numbers(64, 1)) == 0);
  CHECK(consumer.read(std::span(out).first(10)) == 10);
  CHECK(producer.write(numbers(64, 36)) == 10);
  CHECK(consumer.read(std::span(out).subspan(10)) == 64 - 10);
  CHECK(consumer.read(std::span(out).subspan(64)) == 10);
  CHECK(consumer.read(out) == 0);
  out.resize(74);
  CHECK(out == numbers(0, 74));
  CHECK(producer.write({}) == 0);
  CHECK(consumer.read({}) == 0);
}

TEST_CASE("a faulty peer's counters never let a byte ring touch what lies outside") {
  // The peer may store anything at any time: before and between calls, in both counters.
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t wrong : {std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{64},
                                    std::uint64_t{65}, std::uint64_t{1} << 40, most - 5, most}) {
    CAPTURE(wrong);
    struct {
      Memory memory;
      std::byte behind[4096]{};
    } place;
    auto* const counters = reinterpret_cast<std::uint64_t*>(&place.memory);
    ByteRing producer(&place.memory, 64), consumer(&place.memory, 64);
    const std::vector<std::byte> much = numbers(1, 1000);
    std::vector<std::byte> taken(1000);
    for (int k = 0; k < 4; ++k) {
      counters[0] = counters[8] = wrong;  // written, and a cache line further on: read
      CHECK(producer.write(much) <= 64);
      counters[0] = counters[8] = wrong;
      CHECK(consumer.read(taken) <= 64);
    }
    for (const std::byte byte : place.behind) REQUIRE(byte == std::byte{0});
  }
}

TEST_CASE("a byte ring between two threads keeps every byte in order") {
  constexpr std::size_t total = 200'000;
  Memory memory;
  const std::vector<std::byte> sent = numbers(0, total);
  std::vector<std::byte> received(total);
  std::thread producer([&] {
    ByteRing ring(&memory, 64);
    std::mt19937 random(1);
    for (std::size_t done = 0; done < total;) {
      const std::size_t most = std::min<std::size_t>(total - done, 1 + random() % 100);
      const std::size_t count = ring.write(std::span(sent).subspan(done, most));
      if (count == 0) std::this_thread::yield();
      done += count;
    }
  });
  ByteRing ring(&memory, 64);
  std::mt19937 random(2);
  for (std::size_t done = 0; done < total;) {
    const std::size_t most = std::min<std::size_t>(total - done, 1 + random() % 100);
    const std::size_t count = ring.read(std::span(received).subspan(done, most));
    if (count == 0) std::this_thread::yield();
    done += count;
  }
  producer.join();
  CHECK(received == sent);
}
