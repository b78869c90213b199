#include "lockstep/dist/transport/wait_board.h"

#include <doctest/doctest.h>

#include <cstring>

#include "lockstep/core/hash.h"
#include "lockstep/dist/transport/regions.h"
#include "lockstep/dist/transport/wait_watch.h"
#include "support/forked_ranks.h"

namespace lockstep::dist {
namespace {

using test::expect;

/// Runs body(board) on `size` processes.
std::vector<test::Outcome> run_on_boards(const std::string& kind, int size,
                                         const std::function<void(WaitBoard&, Rendezvous&)>& body) {
  const test::TemporaryFolder folder;
  return test::run_processes(size, [&](int rank) {
    RendezvousOptions options;
    options.address = Endpoint::parse("unix:" + folder / "rendezvous");
    options.credentials = {{}, fnv1a("job"), rank, size};
    options.timeout = Seconds(20);
    const auto rendezvous = join_rendezvous(options);
    body(*(kind == "shm" ? shm_wait_board(*rendezvous) : tcp_wait_board(*rendezvous)), *rendezvous);
  });
}

void await_note(WaitBoard& board, int rank, std::uint64_t beat) {
  const Deadline deadline(Seconds(10));
  while (board.of(rank).beat < beat) {
    expect(!deadline.passed(), "note {} of rank {} does not come", beat, rank);
    ::usleep(1000);
  }
}

TEST_CASE("wait board: every rank reads every note") {
  for (const std::string kind : {"shm", "tcp"}) {
    for (const int size : {1, 2, 3, 4, 7}) {
      CAPTURE(kind);
      CAPTURE(size);
      test::check_all_well(run_on_boards(kind, size, [&](WaitBoard& board, Rendezvous& all) {
        const int rank = board.rank();
        board.tell(WaitNote::Kind::waits, rank + 1, fmt::format("call {}\n", rank * 10));
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          await_note(board, peer, 1);
          const WaitNote note = board.of(peer);
          expect(note.kind == WaitNote::Kind::waits && note.rank == peer + 1, "{}", note.rank);
          expect(note.call_text() == fmt::format("call {}?", peer * 10), "{}", note.call_text());
        }
        all.all_gather("read", "");
        board.withdraw();
        board.withdraw();  // nothing to withdraw
        for (int peer = 0; peer < size; ++peer) {
          if (peer == rank) continue;
          await_note(board, peer, 2);
          expect(board.of(peer).kind == WaitNote::Kind::none && board.of(peer).beat == 2, "{}",
                 board.of(peer).beat);
        }
        all.all_gather("read again", "");
      }));
    }
  }
}

TEST_CASE("wait board: a rank that reads nothing hinders nobody, and reads on later") {
  for (const std::string kind : {"shm", "tcp"}) {
    CAPTURE(kind);
    test::check_all_well(run_on_boards(kind, 2, [](WaitBoard& board, Rendezvous& all) {
      constexpr std::uint64_t many = 200'000;  // more than the kernel's buffers take
      if (board.rank() == 0)
        for (std::uint64_t k = 0; k < many; ++k) board.tell(WaitNote::Kind::waits, 1, "a call");
      all.all_gather("told", "");
      if (board.rank() == 1) await_note(board, 0, 1000);
      all.all_gather("read", "");
      board.tell(WaitNote::Kind::timed_out, 1, "");
      board.tell(WaitNote::Kind::timed_out, 1, "");  // one may only push out a part that was left
      all.all_gather("told again", "");
      if (board.rank() == 1) await_note(board, 0, many + 1);
      const WaitNote newest = board.of(0);
      expect(board.rank() == 0 || newest.kind == WaitNote::Kind::timed_out, "an old note");
      all.all_gather("end", "");
    }));
  }
}

TEST_CASE("wait board: of a rank that was stopped while it wrote nothing is read") {
  const SharedRegion region =
      cut_into_parts(allocate_pages(2 * parts_apart(wait_board_bytes, 2)), 2, wait_board_bytes);
  const auto reader = memory_wait_board(region, 0), writer = memory_wait_board(region, 1);
  writer->tell(WaitNote::Kind::waits, 0, "all_reduce #3 'a'");
  CHECK(reader->of(1).kind == WaitNote::Kind::waits);
  CHECK(reader->of(1).call_text() == "all_reduce #3 'a'");
  std::uint64_t version = 0;  // the first word of a slot: odd while it is written
  std::memcpy(&version, region.base[1], sizeof version);
  CHECK(version % 2 == 0);
  ++version;
  std::memcpy(region.base[1], &version, sizeof version);
  CHECK(reader->of(1).kind == WaitNote::Kind::none);
}

/// Rank 0 of 3 waits for rank 1 for 8 s, while the others' notes are as `tell` makes them every
/// second; whom it blames, in words [and as a value]. The 8 s are those of the communicator, or
/// of this wait.
using Tell = std::function<void(int second, WaitBoard& one, WaitBoard& two)>;
std::string blame_of(const Tell& tell, Seconds timeout) {
  const auto boards = threads_wait_boards(3);
  WaitWatch watch(timeout, Seconds(1), boards[0]);
  for (int second = 0; second <= 8; ++second) {
    tell(second, *boards[1], *boards[2]);
    watch.look(Seconds(100 + second), Seconds(8));
    if (watch.due()) watch.exchange(1, "all_reduce #3 'a'");
  }
  const auto [text, blame] = watch.blame(1, "step 1 of 2");
  return text + " [" + text_of(blame) + "]";
}
std::string blame_of(const Tell& tell) {
  const std::string usual = blame_of(tell, Seconds(8));
  CHECK(usual == blame_of(tell, Seconds(8000)));
  return usual;
}

TEST_CASE("wait watch: only notes that are repeated lead on") {
  const auto waits = WaitNote::Kind::waits;
  CHECK(blame_of([](int, WaitBoard&, WaitBoard&) {}) ==
        "waiting for rank 1 (step 1 of 2) [rank 1 hangs]");
  CHECK(blame_of([&](int, WaitBoard& one, WaitBoard&) { one.tell(waits, 2, "barrier #3 'b'"); }) ==
        "waiting for rank 2, which has not moved: rank 0 waits for rank 1 (step 1 of 2), which "
        "waits for rank 2 in barrier #3 'b' [rank 2 hangs]");
  // Rank 1 was stopped after 4 s, while it waited.
  CHECK(blame_of([&](int second, WaitBoard& one, WaitBoard&) {
          if (second <= 4) one.tell(waits, 2, "barrier #3 'b'");
        }) == "waiting for rank 1 (step 1 of 2) [rank 1 hangs]");
  // Rank 1 had what it waited for after 7 s.
  CHECK(blame_of([&](int second, WaitBoard& one, WaitBoard&) {
          if (second < 7)
            one.tell(waits, 2, "barrier #3 'b'");
          else
            one.withdraw();
        }) == "waiting for rank 1 (step 1 of 2) [rank 1 hangs]");
  CHECK(test::contains(blame_of([&](int, WaitBoard& one, WaitBoard& two) {
                         one.tell(waits, 2, "barrier #3 'b'");
                         two.tell(waits, 1, "barrier #4 'c'");
                       }),
                       "ranks wait for each other"));
  const std::string through_itself = blame_of([&](int, WaitBoard& one, WaitBoard& two) {
    one.tell(waits, 2, "barrier #3 'b'");
    two.tell(waits, 0, "barrier #4 'c'");
  });
  CHECK(test::contains(through_itself, "waiting for rank 1: ranks wait for each other: rank 0 "));
  CHECK(!test::contains(through_itself, "has not moved"));
  CHECK(through_itself.ends_with(" []"));
  // A rank that has timed out says no more, but it has said whom it found.
  CHECK(test::contains(blame_of([&](int second, WaitBoard& one, WaitBoard&) {
                         if (second == 4) one.tell(WaitNote::Kind::timed_out, 2, "");
                       }),
                       "waiting for rank 2, which has not moved"));
  // What a faulty rank says is not followed out of the world.
  CHECK(blame_of([&](int, WaitBoard& one, WaitBoard&) { one.tell(waits, 3, "?"); }) ==
        "waiting for rank 1 (step 1 of 2) [rank 1 hangs]");
}

TEST_CASE("wait watch: a rank that stood still reads what was told meanwhile before it blames") {
  for (const bool hangs : {false, true}) {  // rank 1, for as long
    const auto boards = threads_wait_boards(3);
    WaitWatch watch(Seconds(8), Seconds(100), boards[0]);
    for (int second = 0; second <= 9; ++second) {
      if (second <= 2 || !hangs) boards[1]->tell(WaitNote::Kind::waits, 2, "barrier #3 'b'");
      if (second > 2 && second < 9) continue;
      watch.look(Seconds(100 + second), Seconds(8));
      if (second < 9) watch.exchange(1, "all_reduce #3 'a'");
    }
    CHECK(watch.blame(1, "step 1 of 2").blame == Blame{{hangs ? 1 : 2}, Fault::hangs});
  }
}

TEST_CASE("wait watch: a rank whose wait has just ended has moved, and is waited for once more") {
  // Rank 1 waits for rank 2 until `free`, and again and again if it goes on `elsewhere`.
  const auto timed_out_at = [](int free, bool elsewhere) {
    const auto boards = threads_wait_boards(3);
    WaitWatch watch(Seconds(8), Seconds(1), boards[0]);
    for (int second = 0;; ++second) {
      if (second < free || (elsewhere && second % 4 != 0))
        boards[1]->tell(WaitNote::Kind::waits, 2, "barrier #3 'b'");
      else
        boards[1]->withdraw();
      watch.look(Seconds(100 + second), Seconds(8));
      watch.exchange(1, "all_reduce #3 'a'");
      if (watch.look(Seconds(100 + second), Seconds(8)) > Seconds(8)) return second;
    }
  };
  CHECK(timed_out_at(0, false) == 9);
  CHECK(timed_out_at(5, false) == 14);
  CHECK(timed_out_at(9, false) == 18);  // in the moment in which the wait would have ended
  CHECK(timed_out_at(5, true) == 17);   // not for ever
}

TEST_CASE("wait watch: time in which the process did not run does not count") {
  WaitWatch watch(Seconds(8), Seconds(0.1));
  CHECK(watch.look(Seconds(100), Seconds(8)) == Seconds(0));
  CHECK(watch.look(Seconds(100.05), Seconds(8)).count() == doctest::Approx(0.05));
  CHECK(watch.look(Seconds(130), Seconds(8)).count() == doctest::Approx(0.15));  // it was stopped
  CHECK(watch.look(Seconds(130.1), Seconds(8)).count() == doctest::Approx(0.25));
  watch.moved();
  CHECK(watch.look(Seconds(140), Seconds(8)) == Seconds(0));
}

}  // namespace
}  // namespace lockstep::dist
