// Generations: what a launcher writes, ranks read.

#include "lockstep/dist/rendezvous/survival/generation.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <locale>

#include "lockstep/core/text/number.h"
#include "lockstep/dist/rendezvous/socket.h"

using namespace lockstep::dist;

TEST_CASE("generation: the newest whole line counts") {
  const Descriptor file(checked(memfd_create("generations", MFD_CLOEXEC), "make a memory file"));
  const auto append = [&](const std::string& text) {
    REQUIRE(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  };
  CHECK_THROWS_AS((void)newest_generation(file.get()), lockstep::CommError);
  append(write_generation({.number = 0, .members = {0, 1, 2, 3}, .nodes = {0, 0, 0, 0}}));
  CHECK(newest_generation(file.get()).has(1));
  append(write_generation({.number = 1, .members = {0, 2, 3}, .nodes = {0, 0, 0}}));
  CHECK(!newest_generation(file.get()).has(1));
  CHECK(newest_generation(file.get()).members == std::vector{0, 2, 3});
  append("2 - 0@0");  // a line that is being written
  CHECK(newest_generation(file.get()).number == 1);
  append(" 3@1\n");
  CHECK(newest_generation(file.get()).number == 2);
  CHECK(newest_generation(file.get()).members == std::vector{0, 3});
  CHECK(newest_generation(file.get()).nodes == std::vector{0, 1});
  CHECK(newest_generation(file.get()).address.empty());
  append(write_generation({.number = 3, .members = {}}));  // all others have ended well
  CHECK(newest_generation(file.get()).number == 3);
  CHECK(newest_generation(file.get()).members.empty());

  std::vector<int> many(2000);  // more than one part of the file
  for (int r = 0; r < 2000; ++r) many[static_cast<std::size_t>(r)] = r;
  append(write_generation(
      {.number = 4, .members = many, .nodes = std::vector(2000, 1), .address = "10.0.0.1:4000"}));
  CHECK(newest_generation(file.get()).members == many);
  CHECK(newest_generation(file.get()).address == "10.0.0.1:4000");
}

TEST_CASE("generation: the place of a member in its world, and on its machine") {
  const Generation generation{.number = 3, .members = {1, 2, 5, 6}, .nodes = {1, 0, 1, 0}};
  const int expected[][3] = {{1, 0, 0}, {2, 1, 0}, {5, 2, 1}, {6, 3, 1}};
  for (const auto& [member, rank, local_rank] : expected) {
    const Place place = place_in(generation, member);
    CHECK(place.rank == rank);
    CHECK(place.size == 4);
    CHECK(place.local_rank == local_rank);
    CHECK(place.local_size == 2);
  }
}

TEST_CASE("generation: blanks and numbers are those of C, whatever the program's locale says") {
  struct French : std::numpunct<char> {
    char do_thousands_sep() const override { return ' '; }
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before =
      std::locale::global(std::locale(std::locale::classic(), new French));  // the locale owns it
  const Descriptor file(checked(memfd_create("generations", MFD_CLOEXEC), "make a memory file"));
  const std::string text = write_generation(
      {.number = 1, .members = {0, 2000, 3000}, .nodes = {0, 0, 1}, .address = "10.0.0.1:4000"});
  CHECK(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  const Generation generation = newest_generation(file.get());
  int first = 0, second = 0;
  lockstep::classic_stream("12 345,6") >> first >> second;
  std::locale::global(before);
  CHECK(generation.members == std::vector{0, 2000, 3000});
  CHECK(generation.nodes == std::vector{0, 0, 1});
  CHECK(first == 12);
  CHECK(second == 345);
}
