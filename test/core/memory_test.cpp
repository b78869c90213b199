// The caching allocator, and storage, which is the counted reference to its blocks.
#include "lockstep/core/memory.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "lockstep/core/storage.h"

namespace lockstep {
namespace {

using memory::caching;

TEST_CASE("memory: blocks are aligned, disjoint and writable to the last byte") {
  std::vector<std::pair<std::uint8_t*, std::size_t>> blocks;
  for (std::size_t bytes : {0, 1, 63, 64, 65, 80, 81, 1000, 4097, 3 << 20}) {
    auto* block = static_cast<std::uint8_t*>(memory::allocate(bytes));
    REQUIRE(block != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
    std::memset(block, static_cast<int>(blocks.size() + 1), bytes);
    blocks.emplace_back(block, bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto [block, bytes] = blocks[i];
    for (std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1})
      if (at < bytes) CHECK(block[at] == i + 1);
    memory::release(block, bytes);
  }
}

TEST_CASE("memory: at most a fifth of a block is unused") {
  std::vector<std::size_t> sizes{1u << 20, (1u << 20) + 1, 123456789};
  for (std::size_t bytes = 64; bytes < 3000; ++bytes) sizes.push_back(bytes);
  for (std::size_t bytes : sizes) {
    const std::size_t before = memory::statistics().live_bytes;
    void* block = memory::allocate(bytes);
    const std::size_t used = memory::statistics().live_bytes - before;
    memory::release(block, bytes);
    CAPTURE(bytes);
    CHECK(used >= bytes);
    CHECK((used - bytes) * 5 <= used);
    CHECK(memory::statistics().live_bytes == before);
  }
}

TEST_CASE("memory: a freed block serves the next request of its size class") {
  if (!caching) return;
  void* first = memory::allocate(1000);
  memory::release(first, 1000);
  const auto before = memory::statistics();
  void* second = memory::allocate(990);
  CHECK(second == first);
  CHECK(memory::statistics().system_allocations == before.system_allocations);
  CHECK(memory::statistics().cached_bytes < before.cached_bytes);
  memory::release(second, 990);
  CHECK(memory::statistics().cached_bytes == before.cached_bytes);
  CHECK(memory::statistics().live_bytes == before.live_bytes);
}

TEST_CASE("memory: what cannot be had throws, and is not counted") {
  const auto before = memory::statistics();
  for (const std::size_t bytes : {memory::largest, memory::largest + 1, ~std::size_t{0}}) {
    CAPTURE(bytes);
    if (!caching && bytes == memory::largest) continue;  // AddressSanitizer ends the process
    CHECK_THROWS_AS(memory::allocate(bytes), MemoryError);
    CHECK_THROWS_AS(Storage::allocate(bytes), MemoryError);
  }
  CHECK(memory::statistics().live_bytes == before.live_bytes);
  CHECK(memory::statistics().system_allocations == before.system_allocations);
}

TEST_CASE("memory: threads allocate and release each other's blocks") {
  const std::size_t live = memory::statistics().live_bytes;
  constexpr int count = 2000;
  std::vector<std::atomic<std::uint8_t*>> slots(count);
  std::thread giver([&] {
    for (int i = 0; i < count; ++i) {
      auto* block =
          static_cast<std::uint8_t*>(memory::allocate(static_cast<std::size_t>(100 + i % 7)));
      block[99] = static_cast<std::uint8_t>(i);
      slots[static_cast<std::size_t>(i)].store(block, std::memory_order_release);
    }
  });
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    std::uint8_t* block = nullptr;
    while (!(block = slots[static_cast<std::size_t>(i)].load(std::memory_order_acquire)))
      std::this_thread::yield();
    wrong += block[99] != static_cast<std::uint8_t>(i);
    memory::release(block, static_cast<std::size_t>(100 + i % 7));
  }
  giver.join();
  CHECK(wrong == 0);
  CHECK(memory::statistics().live_bytes == live);
}

TEST_CASE("storage: without memory there is nothing to ask for") {
  const Storage none;
  CHECK_FALSE(static_cast<bool>(none));
  CHECK_THROWS_WITH_AS(none.data(), "[storage] an empty storage has no memory", StateError);
  CHECK_THROWS_AS(none.bytes(), StateError);
  CHECK_THROWS_AS(none.device(), StateError);
  CHECK_THROWS_AS(none.unique(), StateError);
}

TEST_CASE("storage: the last reference frees") {
  const std::size_t live = memory::statistics().live_bytes;
  {
    Storage a = Storage::allocate(100);
    CHECK(a.bytes() == 100);
    CHECK(a.unique());
    Storage b = a;
    CHECK_FALSE(a.unique());
    CHECK(b.data() == a.data());
    a = Storage();
    CHECK_FALSE(static_cast<bool>(a));
    CHECK(b.unique());
    Storage c = std::move(b);
    CHECK_FALSE(static_cast<bool>(b));
    CHECK(c.unique());
    const Storage& alias = c;
    c = alias;  // assigned to itself
    CHECK(c.unique());
    CHECK(memory::statistics().live_bytes > live);
  }
  CHECK(memory::statistics().live_bytes == live);
}

TEST_CASE("storage: adopted memory is given back once, by the last reference") {
  int released = 0;
  std::vector<std::byte> owner(32);
  {
    const Storage a = Storage::adopt(owner.data(), owner.size(), [&] { ++released; });
    CHECK(a.data() == owner.data());
    CHECK(a.bytes() == 32);
    {
      const Storage b = a;
      CHECK(released == 0);
    }
    CHECK(released == 0);
  }
  CHECK(released == 1);
  { const Storage nobody = Storage::adopt(owner.data(), owner.size(), {}); }
  CHECK(released == 1);
}

TEST_CASE("storage: references are counted across threads") {
  int released = 0;
  std::byte byte{};
  {
    const Storage storage = Storage::adopt(&byte, 1, [&] { ++released; });
    const auto copy_often = [storage] {
      for (int i = 0; i < 20000; ++i) Storage copy = storage;
    };
    std::thread one(copy_often), two(copy_often);
    one.join();
    two.join();
  }
  CHECK(released == 1);
}

}  // namespace
}  // namespace lockstep
