#include <doctest/doctest.h>

#include <set>

#include "lockstep/core/hash.h"
#include "lockstep/dist/transport/memory_transport.h"
#include "lockstep/dist/transport/regions.h"
#include "lockstep/dist/transport/transports.h"
#include "support/forked_ranks.h"

namespace lockstep::dist {
namespace {

using test::contains;
using test::expect;
using test::TemporaryFolder;

std::shared_ptr<Rendezvous> join(const TemporaryFolder& folder, int rank, int size) {
  RendezvousOptions options;
  options.address = Endpoint::parse("unix:" + folder / "rendezvous");
  options.credentials = {{}, fnv1a("job"), rank, size};
  options.timeout = Seconds(20);
  return join_rendezvous(options);
}

TEST_CASE("shm: streams share 64 MiB") {
  CHECK(stream_capacity(1) == 256 * 1024);
  CHECK(stream_capacity(2) == 256 * 1024);
  CHECK(stream_capacity(16) == 256 * 1024);
  CHECK(stream_capacity(17) == 128 * 1024);  // 272 streams
  CHECK(stream_capacity(1000) == 4096);
  CHECK(stream_capacity(4096) == 4096);
}

TEST_CASE("shm: regions are zeroed, page-aligned, apart, and outlive the transport") {
  const TemporaryFolder folder;
  const int size = 3;
  const auto outcomes = test::run_processes(size, [&](int rank) {
    const auto rendezvous = join(folder, rank, size);
    auto transport = shm_transport(rendezvous);
    std::vector<SharedRegion> regions;
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{0}, std::size_t{10'000}, std::size_t{4096}})
      regions.push_back(transport->allocate(bytes));
    rendezvous->all_gather("all are zero still", "");
    std::set<std::byte*> bases;
    for (const SharedRegion& region : regions) {
      expect(region.base.size() == 3, "{} bases", region.base.size());
      for (std::byte* base : region.base) {
        expect(reinterpret_cast<std::uintptr_t>(base) % 4096 == 0, "not aligned to a page");
        bases.insert(base);
        for (std::size_t i = 0; i < region.bytes; ++i) expect(base[i] == std::byte{0}, "not zero");
      }
    }
    expect(bases.size() == 12, "{} different bases", bases.size());
    rendezvous->all_gather("nobody has written yet", "");
    transport.reset();
    for (const SharedRegion& region : regions)
      for (std::size_t i = 0; i < region.bytes; ++i)
        region.base[static_cast<std::size_t>(rank)][i] = static_cast<std::byte>(rank * 50 + i % 50);
    rendezvous->all_gather("everybody has written", "");
    for (const SharedRegion& region : regions)
      for (int r = 0; r < size; ++r)
        for (std::size_t i = 0; i < region.bytes; ++i)
          expect(region.base[static_cast<std::size_t>(r)][i] ==
                     static_cast<std::byte>(static_cast<std::size_t>(r) * 50 + i % 50),
                 "rank {}'s byte {}", r, i);
    rendezvous->all_gather("everybody has read", "");
  });
  test::check_all_well(outcomes);
}

TEST_CASE("shm: too large a region is refused on every rank, with the size") {
  const TemporaryFolder folder;
  const auto outcomes = test::run_processes(2, [&](int rank) {
    const auto transport = shm_transport(join(folder, rank, 2));
    try {
      transport->allocate(std::size_t{1} << 50);
    } catch (const CommError& error) {
      expect(contains(error.what(), "2147483648.0 MiB are needed"), "{}", error.what());
      transport->allocate(100);  // and life goes on
      return;
    }
    fail<Error>("2^50 bytes were given");
  });
  test::check_all_well(outcomes);
}

TEST_CASE("shm: regions of different sizes are an error on every rank") {
  const TemporaryFolder folder;
  const auto outcomes = test::run_processes(
      3, [&](int rank) { shm_transport(join(folder, rank, 3))->allocate(rank == 1 ? 200 : 100); });
  for (const auto& outcome : outcomes)
    CHECK(contains(outcome.message, "rank 0 asks for 100 bytes, rank 1 for 200"));
}

TEST_CASE("shm: whole pages") {
  CHECK(whole_pages(0) == 4096);
  CHECK(whole_pages(1) == 4096);
  CHECK(whole_pages(4096) == 4096);
  CHECK(whole_pages(4097) == 8192);
}

TEST_CASE("shm: no two parts lie a multiple of 256 MiB apart, which a Zen core cannot cache") {
  constexpr std::size_t way = std::size_t{256} << 20;
  for (const int ranks : {1, 2, 3, 4, 7, 64, 1000})
    for (std::size_t bytes = 1; bytes <= 8 * way; bytes *= 2)
      for (const std::size_t more : {std::size_t{0}, std::size_t{1}, bytes / 2, 3 * bytes / 4}) {
        const std::size_t apart = parts_apart(bytes + more, ranks);
        CAPTURE(bytes + more);
        CHECK(apart % page_bytes == 0);
        CHECK(apart >= bytes + more);
        CHECK(apart <= whole_pages(bytes + more) + 8 * page_bytes);
        for (std::size_t k = 1; k < std::min<std::size_t>(ranks, 8); ++k)
          CHECK(k * apart % way != 0);
      }
  CHECK(parts_apart(way, 2) == way + page_bytes);
  CHECK(parts_apart(0x108000, 2) == 0x109000);  // bits 15 and 20, which its hash has together
  CHECK(parts_apart(page_bytes, 2) == page_bytes);
}

TEST_CASE("shm: nothing is left open where descriptors do not travel") {
  std::string address;
  {
    const Descriptor listener = listen_on(Endpoint::parse("127.0.0.1:0"));
    address = "127.0.0.1:" + std::to_string(local_port(listener.get()));
  }
  const auto outcomes = test::run_processes(2, [&](int rank) {
    RendezvousOptions options;
    options.address = Endpoint::parse(address);
    options.credentials = {{}, fnv1a("job"), rank, 2};
    options.timeout = Seconds(20);
    const auto rendezvous = join_rendezvous(options);
    const int before = test::entries("/proc/self/fd");
    try {
      shm_transport(rendezvous);
      fail<Error>("shared");
    } catch (const CommError& error) {
      expect(contains(error.what(), "does not travel"), "{}", error.what());
    }
    expect(test::entries("/proc/self/fd") == before, "a descriptor is left open");
  });
  test::check_all_well(outcomes);
}

}  // namespace
}  // namespace lockstep::dist
