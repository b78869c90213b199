#include "lockstep/dist/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "dist/transport/processes.h"
#include "lockstep/core/hash.h"

namespace lockstep::dist {
namespace {

using test::contains;
using test::expect;
using test::Outcome;
using test::TemporaryFolder;

Token token_of(unsigned char byte) {
  Token token;
  token.fill(std::byte{byte});
  return token;
}

RendezvousOptions options_for(const std::string& address, int rank, int size, double timeout = 20) {
  RendezvousOptions options;
  options.address = Endpoint::parse(address);
  options.one_machine = true;
  options.credentials = {token_of(7), fnv1a("job"), rank, size};
  options.timeout = Seconds(timeout);
  return options;
}

/// Runs body(rank) in threads and returns what each threw ("" if nothing).
std::vector<std::string> run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// A stranger's connection, tried until somebody listens.
Descriptor stranger(const std::string& address) {
  std::string why;
  const Deadline deadline(Seconds(10));
  while (!deadline.passed()) {
    Descriptor socket = connect_to(Endpoint::parse(address), deadline, why);
    if (socket) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

void write_text(const Descriptor& socket, std::string_view text) {
  send_all(socket.get(), std::as_bytes(std::span(text)), Deadline(Seconds(1)));
}

/// True if the other end closes within the limit, without a byte.
bool gets_closed(const Descriptor& socket, double limit) {
  std::byte byte{};
  return receive_all(socket.get(), std::span(&byte, 1), Deadline(Seconds(limit))) ==
         Transfer::closed;
}

/// Exchanges unequal, sometimes empty, sometimes long strings, twice.
void exchange(Rendezvous& rendezvous) {
  for (int round = 0; round < 2; ++round) {
    const auto given = [&](int r) {
      return std::string(static_cast<std::size_t>(r == 1 ? 0 : 70'000 * round + r),
                         static_cast<char>('a' + r));
    };
    const auto all =
        rendezvous.all_gather("round " + std::to_string(round), given(rendezvous.rank()));
    expect(all.size() == static_cast<std::size_t>(rendezvous.size()), "{} parts", all.size());
    for (int r = 0; r < rendezvous.size(); ++r)
      expect(all[static_cast<std::size_t>(r)] == given(r), "rank {}'s part is wrong", r);
  }
}

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

TEST_CASE("rendezvous: frames") {
  CHECK(unpack(pack({"", "a", "bcd"})) == std::vector<std::string>{"", "a", "bcd"});
  CHECK(unpack("").empty());
  CHECK_THROWS_AS(unpack("abc"), CommError);
  CHECK_THROWS_AS(unpack(std::string("\xff\xff\xff\xff", 4)), CommError);
  CHECK_THROWS_AS(unpack(std::string("\x02\0\0\0x", 5)), CommError);

  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  const Descriptor a(ends[0]);
  Descriptor b(ends[1]);
  FrameReader reader;
  CHECK(reader.read(a.get()) == FrameReader::State::incomplete);
  const std::string whole("\x03\0\0\0gxyz", 8);
  for (std::size_t i = 0; i < whole.size(); ++i) {  // byte by byte
    REQUIRE(::write(b.get(), &whole[i], 1) == 1);
    CHECK(reader.read(a.get()) ==
          (i + 1 == whole.size() ? FrameReader::State::complete : FrameReader::State::incomplete));
  }
  CHECK(reader.take().body == "xyz");
  send_frame(b.get(), FrameKind::abort, "", Deadline(Seconds(1)));  // an empty body
  CHECK(reader.read(a.get()) == FrameReader::State::complete);
  CHECK(reader.take().kind == FrameKind::abort);
  SUBCASE("a length beyond the limit is refused before anything is allocated") {
    for (const char* head : {"\xff\xff\xff\xffg", "\x01\0\0\x01g"}) {
      FrameReader other;
      REQUIRE(::write(b.get(), head, 5) == 5);
      CHECK_THROWS_AS(other.read(a.get()), CommError);
    }
    CHECK_THROWS_AS(send_frame(b.get(), FrameKind::gather, std::string(most_frame_bytes + 1, 'x'),
                               Deadline(Seconds(1))),
                    CommError);
  }
  SUBCASE("the end") {
    b.close();
    CHECK(reader.read(a.get()) == FrameReader::State::ended);
  }
}

TEST_CASE("rendezvous: a world of 1 opens nothing") {
  const auto rendezvous = join_rendezvous(options_for("unix:/nonexistent/folder/x", 0, 1));
  CHECK(rendezvous->all_gather("x", "mine") == std::vector<std::string>{"mine"});
  CHECK(rendezvous->share_descriptor("x", 42) == 42);
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
    const Descriptor shared(rendezvous->share_descriptor("file", mine));
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
    rendezvous->share_descriptor("file", 0);
  });
  for (const std::string& error : errors) CHECK(contains(error, "does not travel"));
}

TEST_CASE("rendezvous: strangers are closed and do not disturb") {
  const TemporaryFolder folder;
  for (const std::string& address : {"unix:" + folder / "rendezvous", test::free_address()}) {
    CAPTURE(address);
    std::vector<int> closed_in_time(3, 0);  // not bool: threads write side by side
    std::vector<std::thread> strangers;
    std::atomic<int> ready{0};
    const std::vector<std::string> garbage{
        "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser that likes long names\r\n\r\n",
        std::string(64, '\0'), std::string(1000, '\xff')};
    for (std::size_t i = 0; i < garbage.size(); ++i)
      strangers.emplace_back([&, i] {
        const Descriptor socket = stranger(address);
        ++ready;
        write_text(socket, garbage[i]);
        closed_in_time[i] = gets_closed(socket, 4);
      });
    const auto errors = run_ranks(3, [&](int rank) {
      while (rank == 2 && ready < 3) std::this_thread::yield();  // the strangers come first
      exchange(*join_rendezvous(options_for(address, rank, 3)));
    });
    for (std::thread& thread : strangers) thread.join();
    for (const std::string& error : errors) CHECK(error == "");
    CHECK(std::count(closed_in_time.begin(), closed_in_time.end(), 1) == 3);
  }
}

TEST_CASE("rendezvous: silent, slow and many connections") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  std::atomic<bool> crowd_is_there{false};
  std::thread crowd([&] {
    std::vector<Descriptor> idle;
    for (int i = 0; i < 300; ++i) {
      idle.push_back(stranger(address));
      if (i % 3 == 0) write_text(idle.back(), "Lock");  // half a Hello
    }
    crowd_is_there = true;
    const Deadline enough(Seconds(0.5));
    while (!enough.passed()) {
      write_text(idle.back(), "x");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const auto errors = run_ranks(3, [&](int rank) {
    while (rank != 0 && !crowd_is_there) std::this_thread::yield();
    exchange(*join_rendezvous(options_for(address, rank, 3)));
  });
  crowd.join();
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("rendezvous: a wrong token or another job") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto errors = run_ranks(4, [&](int rank) {
    RendezvousOptions options = options_for(address, rank % 2, 2, 0.5);
    if (rank == 2 || rank == 3) options.credentials.rank = 1;
    if (rank == 2) options.credentials.token = token_of(8);
    if (rank == 3) options.credentials.job = fnv1a("other job");
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    exchange(*join_rendezvous(options));
  });
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  for (const std::string& error : {errors[2], errors[3]}) CHECK(contains(error, "rank 1"));
}

TEST_CASE("rendezvous: an impostor in the place of rank 0") {
  const std::string challenge = "Lockstep" + std::string("\x02\0\0\0\0\0\0\0", 8) +
                                std::string(32, 'n');  // anybody can make one
  for (const std::string& answer :
       {std::string(512, 'x'), challenge + std::string(32, 'x') + std::string(512, '\x01')}) {
    const TemporaryFolder folder;
    const std::string address = "unix:" + folder / "rendezvous";
    const Descriptor listener = listen_on(Endpoint::parse(address));
    std::thread impostor([&] {
      Descriptor peer;
      while (!(peer = accept_from(listener.get()))) std::this_thread::yield();
      write_text(peer, answer);
      std::array<std::byte, 1000> heard;  // more than an initiator sends: until it closes
      receive_all(peer.get(), heard, Deadline(Seconds(5)));
    });
    CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 1, 2)),
                         doctest::Contains("does not belong to this job"), CommError);
    impostor.join();
  }
}

TEST_CASE("rendezvous: a stale socket is replaced, other files are not touched") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  {
    const Descriptor dead = listen_on(Endpoint::parse(address));
    struct stat status {};
    REQUIRE(::stat((folder / "rendezvous").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
  }
  const auto errors =
      run_ranks(2, [&](int rank) { exchange(*join_rendezvous(options_for(address, rank, 2))); });
  for (const std::string& error : errors) CHECK(error == "");

  const Descriptor file(::open((folder / "rendezvous").c_str(), O_CREAT | O_WRONLY, 0600));
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 0, 2)), doctest::Contains("in the way"),
                       CommError);
  CHECK(::access((folder / "rendezvous").c_str(), F_OK) == 0);
}

TEST_CASE("rendezvous: the address is taken") {
  const Descriptor other = listen_on(Endpoint::parse("127.0.0.1:0"));
  const std::string address = "127.0.0.1:" + std::to_string(local_port(other.get()));
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 0, 2)),
                       doctest::Contains(address.c_str()), CommError);
  const TemporaryFolder folder;
  const Descriptor rank_0 = listen_on(Endpoint::parse("unix:" + folder / "rendezvous"));
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for("unix:" + folder / "rendezvous", 0, 2)),
                       doctest::Contains("another rank 0"), CommError);
}

TEST_CASE("rendezvous: a rank that comes twice, does not fit, or has another world in mind") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  struct Case {
    int rank, size;
    const char* message;
  };
  for (const Case& wrong : {Case{1, 3, "rank 1 has joined twice"},
                            Case{2, 4, "rank 2 expects a world of 4, rank 0 one of 3"},
                            Case{5, 6, "rank 5 expects a world of 6, rank 0 one of 3"}}) {
    CAPTURE(wrong.message);
    const auto errors = run_ranks(3, [&](int rank) {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const bool culprit = rank == 2;
      join_rendezvous(options_for(address, culprit ? wrong.rank : rank, culprit ? wrong.size : 3));
    });
    for (const std::string& error : errors) CHECK(contains(error, wrong.message));
    CHECK(folder.empty());
  }
}

TEST_CASE("rendezvous: another protocol version") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto errors = run_ranks(2, [&](int rank) {
    if (rank == 0) {
      join_rendezvous(options_for(address, 0, 2));
      return;
    }
    // By hand, as dist/rendezvous/handshake.h draws it: magic, version, purpose, job, rank, size.
    const std::uint64_t job = fnv1a("job");
    std::string hello = "Lockstep" + std::string("\x63\0\0\0\x01\0\0\0", 8) +
                        std::string(reinterpret_cast<const char*>(&job), 8) +
                        std::string("\x01\0\0\0\x02\0\0\0", 8);
    const Descriptor socket = stranger(address);
    write_text(socket, hello);
    std::array<std::byte, 48> challenge;
    const Deadline deadline(Seconds(10));
    expect(receive_all(socket.get(), challenge, deadline) == Transfer::done, "no challenge");
    const Token nonce = token_of(3);
    const Token code =
        hmac(token_of(7), "initiator", {std::as_bytes(std::span(hello)), challenge, nonce});
    send_all(socket.get(), nonce, deadline);
    send_all(socket.get(), code, deadline);
    Token welcome;
    expect(receive_all(socket.get(), welcome, deadline) == Transfer::done, "not welcome");
    throw Error(read_admission(socket.get(), deadline).refusal);
  });
  for (const std::string& error : errors) {
    CHECK(contains(error, "version 99"));
    CHECK(contains(error, fmt::format("version {}", protocol_version)));
  }
}

TEST_CASE("rendezvous: a rank that never arrives") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto errors = run_ranks(
      3, [&](int rank) { join_rendezvous(options_for(address, rank == 2 ? 3 : rank, 5, 0.3)); });
  for (const std::string& error : errors) CHECK(contains(error, "ranks 2, 4 are missing"));
  CHECK(folder.empty());
  CHECK_THROWS_WITH_AS(join_rendezvous(options_for(address, 1, 2, 0.1)),
                       doctest::Contains("did not find rank 0"), CommError);
}

TEST_CASE("rendezvous: missing or different at an exchange") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  SUBCASE("missing") {
    std::atomic<int> ended{0};
    const auto errors = run_ranks(3, [&](int rank) {
      const auto rendezvous = join_rendezvous(options_for(address, rank, 3, 0.5));
      struct Count {
        std::atomic<int>& ended;
        ~Count() { ++ended; }
      };
      if (rank == 2) {
        while (ended < 2) std::this_thread::yield();
        return;
      }
      const Count count{ended};
      rendezvous->all_gather("sizes", "");
    });
    for (const std::size_t r : {0, 1})
      CHECK(contains(errors[r], "'sizes': after 0.5 s rank 2 is missing"));
  }
  SUBCASE("different") {
    const auto errors = run_ranks(3, [&](int rank) {
      join_rendezvous(options_for(address, rank, 3))->all_gather(rank == 1 ? "b" : "a", "");
    });
    for (const std::string& error : errors)
      CHECK(contains(error, "rank 1 is in 'b', rank 0 in 'a'"));
  }
  SUBCASE("gives up") {
    const auto errors = run_ranks(3, [&](int rank) {
      const auto rendezvous = join_rendezvous(options_for(address, rank, 3));
      if (rank == 2)
        rendezvous->abort("rank 2 has no data");
      else
        rendezvous->all_gather("sizes", "");
    });
    CHECK(errors[0] == "rank 2 has no data");
    CHECK(errors[1] == "rank 2 has no data");
  }
  SUBCASE("gives up without a reason") {
    const auto errors = run_ranks(3, [&](int rank) {
      const auto rendezvous = join_rendezvous(options_for(address, rank, 3));
      if (rank == 2) rendezvous->abort("");
      rendezvous->all_gather("sizes", "");
    });
    for (const std::string& error : errors) CHECK(error == "a rank gave up");
  }
}

/// A rank that has authenticated itself and waits to be admitted.
Descriptor wait_for_admission(const std::string& address, const Credentials& own) {
  std::string why;
  const Deadline deadline(Seconds(10));
  Descriptor socket;
  while (!socket)
    socket = send_hello(Endpoint::parse(address), own, Purpose::rendezvous, deadline, why);
  expect(
      authenticate(socket.get(), own, Purpose::rendezvous, deadline).kind == Reply::Kind::accepted,
      "rank {} is not accepted", own.rank);
  return socket;
}

/// Rank `victim` was killed; the others must say so, or at least rank 0 must.
void check_killed(const std::vector<Outcome>& outcomes, int victim, bool only_rank_0_knows) {
  for (int r = 0; r < static_cast<int>(outcomes.size()); ++r) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    CAPTURE(victim);
    CAPTURE(r);
    CAPTURE(outcome.message);
    CHECK(outcome.seconds < 5);
    if (r == victim) {
      CHECK(outcome.signal == SIGKILL);
    } else {
      CHECK(outcome.code == 1);
      if (r == 0 || !only_rank_0_knows)
        CHECK(contains(outcome.message, "rank " + std::to_string(victim) + " is gone"));
    }
  }
}

TEST_CASE("rendezvous: a rank is killed in an exchange") {
  const TemporaryFolder folder;
  for (const int victim : {0, 1, 2}) {
    const auto outcomes = test::run_processes(3, [&](int rank) {
      const auto rendezvous =
          join_rendezvous(options_for("unix:" + folder / "rendezvous", rank, 3));
      exchange(*rendezvous);
      if (rank == victim) ::raise(SIGKILL);
      rendezvous->all_gather("last", "");
    });
    check_killed(outcomes, victim, false);
  }
}

TEST_CASE("rendezvous: a rank is killed while joining") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  SUBCASE("rank 0, with hellos unanswered") {
    const auto outcomes = test::run_processes(3, [&](int rank) {
      if (rank == 0) {
        const Descriptor listener = listen_on(Endpoint::parse(address));
        std::array<Descriptor, 2> peers;
        for (Descriptor& peer : peers)
          while (!(peer = accept_from(listener.get()))) ::usleep(1000);
        ::raise(SIGKILL);
      }
      join_rendezvous(options_for(address, rank, 3));
    });
    check_killed(outcomes, 0, true);
    for (const std::size_t r : {1, 2})
      CHECK(contains(outcomes[r].message, "rank 0 no longer listens"));
  }
  SUBCASE("another, after its hello") {
    for (const int victim : {1, 2}) {
      const auto outcomes = test::run_processes(3, [&](int rank) {
        if (rank == victim) {
          const Descriptor socket =
              wait_for_admission(address, options_for(address, rank, 3).credentials);
          ::usleep(50'000);
          ::raise(SIGKILL);
        }
        if (rank == 3 - victim) ::usleep(200'000);
        join_rendezvous(options_for(address, rank, 3, rank == 0 ? 20 : 0.5));
      });
      check_killed(outcomes, victim, true);
      CHECK(outcomes[0].kind == "peer");
    }
  }
  SUBCASE("another, while one waits to be admitted: the others fail in consequence") {
    const auto outcomes = test::run_processes(3, [&](int rank) {  // nobody is rank 3
      if (rank == 1) {
        const Descriptor socket =
            wait_for_admission(address, options_for(address, 1, 4).credentials);
        ::usleep(500'000);
        ::raise(SIGKILL);
      }
      join_rendezvous(options_for(address, rank, 4));
    });
    for (const std::size_t r : {0, 2}) {
      CHECK(outcomes[r].kind == "peer");
      CHECK(contains(outcomes[r].message, "rank 1 is gone before all ranks had joined"));
    }
  }
}

TEST_CASE("rendezvous: no descriptor is left for another connection") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto outcomes = test::run_processes(2, [&](int rank) {
    if (rank == 0) {  // one descriptor more, for the listener
      const int next = Descriptor(::open("/dev/null", O_RDONLY)).get();
      const rlimit limit{static_cast<rlim_t>(next + 1), static_cast<rlim_t>(next + 1)};
      expect(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    }
    join_rendezvous(options_for(address, rank, 2, rank == 0 ? 20 : 1));
  });
  CHECK(outcomes[0].message == "[rendezvous] cannot accept a connection: Too many open files");
  CHECK_FALSE(outcomes[1].well());
}

TEST_CASE("rendezvous: who is gone") {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  const auto outcomes = test::run_processes(3, [&](int rank) {
    const auto rendezvous = join_rendezvous(options_for(address, rank, 3));
    exchange(*rendezvous);
    if (rank == 1) return;
    const Deadline deadline(Seconds(10));
    const int looked_for = rank == 0 ? 1 : 0;
    while (rendezvous->gone() != std::vector<int>{looked_for})
      expect(!deadline.passed(), "rank {} is not seen to be gone", looked_for);
  });
  test::check_all_well(outcomes);
}

TEST_CASE("rendezvous: the private folder") {
  const TemporaryFolder folder;
  ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
  const LaunchInfo launch{.rank = 1,
                          .size = 2,
                          .local_rank = 1,
                          .local_size = 2,
                          .launcher = "mpirun",
                          .job = "1/../2",
                          .rendezvous = "",
                          .token_descriptor = -1};
  const std::string path = rendezvous_options(launch, Seconds(1)).address.path;
  CHECK(path.starts_with(folder.path() + "/lockstep-" + std::to_string(geteuid()) + "/mpirun-"));
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
  ::unsetenv("XDG_RUNTIME_DIR");
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
