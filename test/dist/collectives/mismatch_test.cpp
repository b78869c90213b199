// Ranks that call different collectives: noticed before data is used, named on both sides, and
// nobody waits for ever.

#include <doctest/doctest.h>

#include "dist/collectives/exercise.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/dist/transport/transports.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

namespace {

using Program = std::function<void(Communicator&)>;

// `odd_one` runs `other`, everybody else `usual`. All ranks must fail, at least one with the cause,
// which contains both texts.
void check_mismatch(const Program& usual, const Program& other, const std::string& usual_text,
                    const std::string& other_text) {
  for (const int world : {2, 3, 4, 7}) {
    for (int odd_one = 0; odd_one < world; ++odd_one) {
      const auto seed = static_cast<std::uint64_t>(world * 10 + odd_one);
      const SimReport report = simulate(
          {.seed = seed, .size = world, .faults = {}},
          [&](int rank, std::unique_ptr<Transport> transport) {
            HostCommunicator comm(std::move(transport));
            comm.barrier("start").wait();
            (rank == odd_one ? other : usual)(comm);
            comm.barrier("end").wait();  // a broadcast's root may end well; here it learns of it
          });
      CAPTURE(world);
      CAPTURE(odd_one);
      int causes = 0;
      for (const std::exception_ptr& error : report.errors) {
        REQUIRE(error);
        const std::string message = message_of(error);
        CAPTURE(message);
        try {
          std::rethrow_exception(error);
        } catch (const PeerError&) {
        } catch (const CommError&) {
          ++causes;
        }
        CHECK(message.find(usual_text) != std::string::npos);
        CHECK(message.find(other_text) != std::string::npos);
      }
      CHECK(causes >= 1);
      CHECK(report.end < Seconds(60));
    }
  }
}

Program reduce(std::int64_t count, const char* name, DType dtype = DType::f32) {
  return [=](Communicator& comm) { comm.all_reduce(Tensor::zeros({count}, dtype), name).wait(); };
}

}  // namespace

TEST_CASE("another count") {
  check_mismatch(reduce(100, "bucket 0"), reduce(101, "bucket 0"),
                 "all_reduce #1 'bucket 0' of 100 f32", "all_reduce #1 'bucket 0' of 101 f32");
  check_mismatch(reduce(0, "bucket 0"), reduce(5000, "bucket 0"), "of 0 f32", "of 5000 f32");
}

TEST_CASE("another dtype") {
  check_mismatch(reduce(10, "x"), reduce(10, "x", DType::i32), "of 10 f32", "of 10 i32");
}

TEST_CASE("another name") {
  check_mismatch(reduce(10, "bucket 0"), reduce(10, "bucket 1"), "'bucket 0'", "'bucket 1'");
  check_mismatch(reduce(10, "a name that is longer A"), reduce(10, "a name that is longer B"),
                 "'a name that is l'", "'a name that is l'");
}

TEST_CASE("another operation") {
  const Program broadcast = [](Communicator& comm) {
    comm.broadcast(Tensor::zeros({5}), 1, "weights").wait();
  };
  const Program barrier = [](Communicator& comm) { comm.barrier("epoch").wait(); };
  const Program gather = [](Communicator& comm) {
    const Range own = partition(9, comm.size(), comm.rank());
    comm.all_gather(Tensor::zeros({own.size()}), Tensor::zeros({9}), "all").wait();
  };
  check_mismatch(reduce(10, "x"), broadcast, "all_reduce #1 'x' of 10 f32",
                 "broadcast #1 'weights' of 5 f32 from root 1");
  check_mismatch(broadcast, barrier, "broadcast #1 'weights'", "barrier #1 'epoch'");
  check_mismatch(gather, reduce(9, "all"), "all_gather #1 'all' of 9", "all_reduce #1 'all' of 9");
}

TEST_CASE("another root") {
  const auto from = [](int root) {
    return [root](Communicator& comm) { comm.broadcast(Tensor::zeros({5}), root, "w").wait(); };
  };
  check_mismatch(from(0), from(1), "from root 0", "from root 1");
}

TEST_CASE("a skipped collective") {
  const auto calls = [](bool skip) {
    return [skip](Communicator& comm) {
      if (!skip) comm.all_reduce(Tensor::zeros({4}), "bucket 0").wait();
      comm.all_reduce(Tensor::zeros({4}), "bucket 1").wait();
      comm.all_reduce(Tensor::zeros({4}), "bucket 2").wait();
    };
  };
  check_mismatch(calls(false), calls(true), "#1 'bucket 0'", "#1 'bucket 1'");
}

TEST_CASE("another place in allocated memory, or none") {
  const auto at = [](std::int64_t begin) {
    return [begin](Communicator& comm) {
      const Tensor region = comm.allocate(100, DType::f32);
      comm.all_reduce(region.slice(begin, begin + 10), "x").wait();
    };
  };
  const Program outside = [](Communicator& comm) {
    comm.allocate(100, DType::f32);
    comm.all_reduce(Tensor::zeros({10}), "x").wait();
  };
  check_mismatch(at(0), at(5), "at byte 0 of region 0", "at byte 20 of region 0");
  check_mismatch(at(0), outside, "at byte 0 of region 0", "all_reduce #1 'x' of 10 f32 (one-shot)");
}

TEST_CASE("another algorithm") {
  const auto errors = on_threads(threads_transports(3), [](int rank, std::unique_ptr<Transport> t) {
    HostCommunicator comm(std::move(t),
                          {.algorithm = rank == 0 ? Algorithm::ring : Algorithm::two_shot});
    comm.all_reduce(Tensor::zeros({4}), "x").wait();
  });
  for (const auto& error : errors) {
    CHECK(message_of(error).find("(ring)") != std::string::npos);
    CHECK(message_of(error).find("(one-shot)") != std::string::npos);
  }
}

TEST_CASE("headers that are none, or of another version") {
  CallHeader mine, theirs;
  CHECK_NOTHROW(compare(mine, theirs, 3));
  theirs.version = 9;
  CHECK_THROWS_WITH(compare(mine, theirs, 3),
                    "rank 3 speaks version 9 of the protocol, this rank version 1");
  theirs.magic = 0x20544547;  // "GET "
  CHECK_THROWS_AS(compare(mine, theirs, 3), CommError);
}

TEST_CASE("after an error every later call throws the same, and what was done stays done") {
  const auto errors = on_threads(threads_transports(2), [](int rank, std::unique_ptr<Transport> t) {
    HostCommunicator comm(std::move(t));
    const Tensor tensor = Tensor::zeros({3});
    Work good = comm.all_reduce(tensor, "good");
    good.wait();
    Work bad = comm.all_reduce(tensor, rank == 0 ? "left" : "right");
    const auto error_of = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const CommError& error) {
        return error.what();
      }
      return "";
    };
    const std::string first = error_of([&] { bad.wait(); });
    check<DataError>(!first.empty(), "the mismatch was not noticed");
    check<DataError>(good.progress(), "what was done is undone");
    check<DataError>(error_of([&] { bad.wait(); }) == first, "it differs the second time");
    Work later = comm.barrier("later");
    check<DataError>(error_of([&] { (void)later.progress(); }) == first,
                     "a later call does not fail");
    check<DataError>(error_of([&] { comm.allocate(1, DType::f32); }) == first, "allocate does not");
    later.wait();
  });
  for (const auto& error : errors) CHECK(message_of(error).find("[all_reduce] rank ") == 0);
}
