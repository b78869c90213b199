#include "lockstep/dist/transport/byte_ring.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
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

TEST_CASE("a byte ring stays within its memory, whatever the other side stores in the counters") {
  constexpr std::size_t capacity = 64;
  constexpr std::uint64_t far = std::uint64_t{1} << 40, negative = ~std::uint64_t{0};
  for (const std::uint64_t lie : {std::uint64_t{1}, std::uint64_t{65}, far, far + 7, negative}) {
    CAPTURE(lie);
    struct alignas(64) Guarded {
      std::byte before[1024]{};
      Memory ring;
      std::byte after[1024]{};
    } memory;
    const auto lie_in = [&](std::size_t counter) {
      std::memcpy(memory.ring.bytes + counter * 64, &lie, sizeof lie);
    };
    ByteRing producer(&memory.ring, capacity), consumer(&memory.ring, capacity);
    const std::vector<std::byte> sent = numbers(1, 300);
    std::vector<std::byte> received(300);
    for (int round = 0; round < 4; ++round) {
      lie_in(1);  // "read", which the producer looks at
      CHECK(producer.write(sent) <= capacity);
      lie_in(0);  // "written", which the consumer looks at
      CHECK(consumer.read(received) <= capacity);
    }
    const auto untouched = [](const std::byte& byte) { return byte == std::byte{0}; };
    CHECK(std::ranges::all_of(memory.before, untouched));
    CHECK(std::ranges::all_of(memory.after, untouched));
  }
}
