#include "lockstep/dist/rendezvous/rendezvous.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/rendezvous/rendezvous_support.h"

namespace lockstep::dist {
namespace {

using namespace testing;

TEST_CASE("rendezvous: endpoints") {
  CHECK(Endpoint::parse("unix:/a/b").path == "/a/b");
  CHECK(Endpoint::parse("node:80").host == "node");
  CHECK(Endpoint::parse("[::1]:7").host == "::1");
  CHECK(Endpoint::parse("[::1]:7").text() == "[::1]:7");
  for (const char* bad : {"", "unix:", "unix:relative", "host", "host:", ":80", "host:x", "host:-1",
                          "host:65536", "host:80x", "[]:80"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(Endpoint::parse(bad), UsageError);
  }
  CHECK_THROWS_AS(listen_on(Endpoint::parse("unix:/tmp/" + std::string(200, 'x'))), CommError);
}

Deadline in_a_second() { return Deadline(Seconds(1)); }

TEST_CASE("rendezvous: frames") {
  CHECK(unpack(pack({"", "a", "bcd"})) == std::vector<std::string>{"", "a", "bcd"});
  CHECK(unpack("").empty());
  CHECK_THROWS_AS(unpack("abc"), CommError);
  CHECK_THROWS_AS(unpack(std::string("\xff\xff\xff\xff", 4)), CommError);
  CHECK_THROWS_AS(unpack(std::string("\x02\0\0\0x", 5)), CommError);

  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  Connection a{Descriptor(ends[0])}, b{Descriptor(ends[1])}, sent{};  // sent: to look at bytes
  FrameReader reader;
  CHECK(reader.read(a) == FrameReader::State::incomplete);
  int others[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, others) == 0);
  sent.socket = Descriptor(others[0]);
  const Descriptor out(others[1]);
  send_frame(sent, FrameKind::gather, "xyz", in_a_second());
  std::string whole(100, '\0');
  whole.resize(static_cast<std::size_t>(::read(out.get(), whole.data(), whole.size())));
  REQUIRE(whole.size() == 5 + 16 + 3 + 16);
  CHECK(whole.starts_with(std::string("\x03\0\0\0g", 5)));
  for (std::size_t i = 0; i < whole.size(); ++i) {  // byte by byte
    REQUIRE(::write(b.get(), &whole[i], 1) == 1);
    CHECK(reader.read(a) ==
          (i + 1 == whole.size() ? FrameReader::State::complete : FrameReader::State::incomplete));
  }
  CHECK(reader.take().body == "xyz");
  b.sending.next(), b.sending.next();  // those of the frame that was written by hand
  SUBCASE("an empty body") {
    send_frame(b, FrameKind::abort, "", in_a_second());
    CHECK(reader.read(a) == FrameReader::State::complete);
    CHECK(reader.take().kind == FrameKind::abort);
  }
  SUBCASE("a length beyond the limit is refused before anything is allocated") {
    for (const char* told : {"\xff\xff\xff\xffg", "\x01\0\0\x01g"}) {
      FrameReader other;
      const Tag tag = seal(b.sending.next(), std::as_bytes(std::span(told, 5)));
      REQUIRE(::write(b.get(), told, 5) == 5);
      REQUIRE(::write(b.get(), tag.data(), tag.size()) == 16);
      CHECK_THROWS_WITH_AS(other.read(a), doctest::Contains("at most 16777216"), CommError);
    }
    CHECK_THROWS_AS(
        send_frame(b, FrameKind::gather, std::string(most_frame_bytes + 1, 'x'), in_a_second()),
        CommError);
  }
  SUBCASE("a flipped bit anywhere") {
    for (std::size_t at = 0; at < whole.size(); ++at) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      Connection from{Descriptor(::dup(a.get()))};
      FrameReader other;
      REQUIRE(::write(b.get(), bad.data(), bad.size()) == std::ssize(bad));
      CHECK_THROWS_WITH_AS(other.read(from), doctest::Contains("changed on the way"), CommError);
      CHECK(other.ended());
      std::array<std::byte, 100> rest;
      while (receive_some(a.get(), rest) > 0) {
      }
    }
  }
  SUBCASE("a frame that is sent once more") {
    REQUIRE(::write(b.get(), whole.data(), whole.size()) == std::ssize(whole));
    CHECK_THROWS_WITH_AS(reader.read(a), doctest::Contains("changed on the way"), CommError);
  }
  SUBCASE("the end") {
    b.socket.close();
    CHECK(reader.read(a) == FrameReader::State::ended);
  }
}

TEST_CASE("rendezvous: a world of 1 opens nothing") {
  const auto rendezvous = join_rendezvous(options_for("unix:/nonexistent/folder/x", 0, 1));
  CHECK(rendezvous->all_gather("x", "mine") == std::vector<std::string>{"mine"});
  Descriptor own(::memfd_create("x", MFD_CLOEXEC));
  const int number = own.get();
  CHECK(rendezvous->share_descriptor("x", std::move(own)).get() == number);
  CHECK(rendezvous->gone().empty());
  CHECK_THROWS_AS(join_rendezvous(options_for("unix:/x", 1, 1)), UsageError);
}

TEST_CASE("rendezvous: exchanges among threads") {
  const TemporaryFolder folder;
  for (const int size : {2, 3, 7}) {
    for (const std::string& address : {"unix:" + folder / "rendezvous", test::free_address()}) {
      CAPTURE(size);
      CAPTURE(address);
      const auto errors = run_ranks(size, [&](int rank) {
        const auto rendezvous = join_rendezvous(options_for(address, rank, size));
        exchange(*rendezvous);
        expect(rendezvous->address() == "127.0.0.1", "address {}", rendezvous->address());
      });
      for (const std::string& error : errors) CHECK(error == "");
      CHECK(folder.empty());
    }
  }
}

TEST_CASE("rendezvous: exchanges and a shared descriptor among processes") {
  const TemporaryFolder folder;
  const auto outcomes = test::run_processes(4, [&](int rank) {
    if (rank == 0) ::usleep(50'000);  // the others are early
    const auto rendezvous = join_rendezvous(options_for("unix:" + folder / "rendezvous", rank, 4));
    expect(::access((folder / "rendezvous").c_str(), F_OK) != 0,
           "the socket's file is still there");
    exchange(*rendezvous);
    int mine = -1;
    if (rank == 0) {
      mine = ::memfd_create("x", MFD_CLOEXEC);
      expect(::write(mine, "hello", 5) == 5, "write");
    }
    const Descriptor shared = rendezvous->share_descriptor("file", Descriptor(mine));
    char text[6] = "";
    expect(::pread(shared.get(), text, 5, 0) == 5 && std::string(text) == "hello", "read '{}'",
           text);
    exchange(*rendezvous);
  });
  test::check_all_well(outcomes);
  CHECK(folder.empty());
}

TEST_CASE("rendezvous: descriptors do not travel over TCP") {
  const std::string address = test::free_address();
  const auto errors = run_ranks(2, [&](int rank) {
    const auto rendezvous = join_rendezvous(options_for(address, rank, 2));
    rendezvous->share_descriptor("file", {});
  });
  for (const std::string& error : errors) CHECK(contains(error, "does not travel"));
}

TEST_CASE("rendezvous: the private folder") {
  const TemporaryFolder folder;
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  const LaunchInfo launch{.rank = 1,
                          .size = 2,
                          .local_rank = 1,
                          .local_size = 2,
                          .launcher = "mpirun",
                          .job = "1/../2",
                          .rendezvous = "",
                          .token_descriptor = -1};
  const std::string path = rendezvous_options(launch, Seconds(1)).address.path;
  CHECK(path.starts_with(folder.path().string() + "/lockstep-" + std::to_string(geteuid()) +
                         "/mpirun-"));
  LaunchInfo other = launch;
  other.job = "1/../3";
  CHECK(rendezvous_options(other, Seconds(1)).address.path != path);
  const std::string inner = folder / ("lockstep-" + std::to_string(geteuid()));
  struct stat status {};
  REQUIRE(::stat(inner.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  ::chmod(inner.c_str(), 0755);
  CHECK_THROWS_WITH_AS(rendezvous_options(launch, Seconds(1)), doctest::Contains("mode 0700"),
                       CommError);
  ::unsetenv("TMPDIR");
}

TEST_CASE("rendezvous: the token comes from a descriptor that all ranks share") {
  const Descriptor memory(::memfd_create("token", MFD_CLOEXEC));
  REQUIRE(::write(memory.get(), std::string(32, '\x05').data(), 32) == 32);
  CHECK(read_token(memory.get()) == token_of(5));
  CHECK(read_token(memory.get()) == token_of(5));  // the shared position does not matter
  REQUIRE(::ftruncate(memory.get(), 31) == 0);
  CHECK_THROWS_AS(read_token(memory.get()), UsageError);
  CHECK_THROWS_AS(read_token(987654), UsageError);
}

}  // namespace
}  // namespace lockstep::dist
