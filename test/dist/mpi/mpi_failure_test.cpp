// The communicator over MPI: what fails, and how jobs end.

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <functional>

#include "dist/collectives/exercise.h"
#include "mpi_job.h"
#include "support/text.h"

namespace lockstep::dist {
namespace {

using namespace testing;

using test::contains;

// The error of this call, which must come.
std::string error_of(const std::function<void()>& call, bool* echo = nullptr) {
  try {
    call();
  } catch (const PeerError& error) {
    if (echo) *echo = true;
    return error.what();
  } catch (const CommError& error) {
    if (echo) *echo = false;
    return error.what();
  }
  fail<DataError>("no error");
}

void expect_text(const std::string& text, const std::string& part) {
  check<DataError>(contains(text, part), "no \"{}\" in: {}", part, text);
}

void fail_by_mismatch(int rank, Communicator& comm) {
  const Tensor three = Tensor::zeros({3}), four = Tensor::zeros({4});
  comm.all_reduce(three, "before").wait();
  Work work = rank == 1 ? comm.all_reduce(four, "other") : comm.all_reduce(three, "mine");
  bool echo = true;
  const std::string text = error_of([&] { work.wait(); }, &echo);
  check<DataError>(!echo, "an echo: {}", text);
  expect_text(text,
              fmt::format("[all_reduce] rank {}, #1 '{}'", rank, rank == 1 ? "other" : "mine"));
  expect_text(text, rank == 1 ? "rank 0 called all_reduce #1 'mine' of 3 f32"
                              : "rank 1 called all_reduce #1 'other' of 4 f32");
  // What it is broken by is what every later call says.
  check<DataError>(error_of([&] { comm.barrier("later").wait(); }) == text, "another error");
  check<DataError>(error_of([&] { comm.allocate(1, DType::f32); }) == text, "another error");
  check<DataError>(three.data<float>()[0] == 0, "data were used");
}

void fail_by_operation(int rank, Communicator& comm) {
  const Tensor data = Tensor::zeros({3});
  Work work = rank == 2 ? comm.barrier("end") : comm.broadcast(data, 0, "weights");
  expect_text(error_of([&] { work.wait(); }),
              rank == 2
                  ? "rank 0 called broadcast #0 'weights' of 3 f32 from root 0, this rank barrier"
                  : "rank 2 called barrier #0 'end', this rank broadcast");
}

void fail_by_timeout(int rank, Communicator& comm) {
  const Tensor data = Tensor::zeros({3});
  comm.all_reduce(data, "before").wait();
  if (rank == 2) ::usleep(4'500'000);  // three times the timeout
  bool echo = false;
  const std::string text =
      error_of([&] { comm.all_reduce(data, "late").wait(Seconds(rank == 2 ? 30 : 1.5)); }, &echo);
  // Who of the two is first, tells the others.
  check<DataError>(rank != 2 || echo, "rank 2 itself timed out: {}", text);
  if (echo) expect_text(text, "gave up in all_reduce #1 'late': ");
  expect_text(text,
              "timed out after 1.5 s, waiting for rank 2 (agreeing on the call); this rank "
              "last finished #0 'before'; rank 2 was last heard from in #0 'before'");
}

void fail_by_abort(int rank, Communicator& comm) {
  const Tensor data = Tensor::zeros({3});
  comm.barrier("before").wait();
  if (rank == 1) {
    ::usleep(50'000);
    comm.abort("rank 1 found a NaN");
    comm.abort("another reason");
    check<DataError>(error_of([&] { comm.barrier("later").wait(); }) == "rank 1 found a NaN",
                     "another error");
    return;
  }
  bool echo = false;
  const std::string text = error_of([&] { comm.all_reduce(data, "bucket 0").wait(); }, &echo);
  check<DataError>(echo, "no echo: {}", text);
  expect_text(text, fmt::format("[all_reduce] rank {}, #1 'bucket 0': rank 1 found a NaN", rank));
}

// Who only polls hears of it as well.
void fail_while_polling(int rank, Communicator& comm) {
  if (rank == 0) return comm.abort("rank 0 has enough");
  Work work = comm.barrier("polled");
  expect_text(error_of([&] {
                while (!work.progress()) ::usleep(100);
              }),
              "rank 0 has enough");
}

void fail_by_leaving(int rank, std::unique_ptr<Communicator> comm) {
  const Tensor data = Tensor::zeros({3});
  comm->all_reduce(data, "last").wait();
  if (rank == 0) return;  // the communicator ends
  bool echo = false;
  const std::string text = error_of([&] { comm->all_reduce(data, "more").wait(); }, &echo);
  check<DataError>(echo, "no echo: {}", text);
  expect_text(text, fmt::format("[all_reduce] rank {}, #1 'more': rank 0 left after 1 call", rank));
}

void fail_while_connecting(int rank, Fabric& fabric) {
  if (rank == 2) return fabric.abort("rank 2 has no data");
  expect_text(error_of([&] { fabric.connect(); }), "rank 2 has no data");
}

void fail_by_other_meeting(int rank, Fabric& fabric) {
  const auto call = [&] { rank == 0 ? void(fabric.connect()) : void(fabric.split({0, 1, 2})); };
  expect_text(error_of(call), rank == 0 ? "rank 1 called barrier #0 'split'"
                                        : "rank 0 called barrier #0 'connect'");
}

TEST_CASE("mpi rank: what fails" * doctest::skip()) {
  if (!is_rank()) return;
  const auto connected = [] { return mpi_fabric(limit)->connect(); };
  const std::shared_ptr<Fabric> end = mpi_fabric(limit);
  const int rank = end->rank();
  fail_by_mismatch(rank, *connected());
  fail_by_operation(rank, *connected());
  fail_by_timeout(rank, *connected());
  fail_by_abort(rank, *connected());
  fail_while_polling(rank, *connected());
  fail_by_leaving(rank, connected());
  fail_while_connecting(rank, *mpi_fabric(limit));
  fail_by_other_meeting(rank, *mpi_fabric(limit));
  exercise<float>(*end->connect(), 1001);  // another communicator still works
  say(fmt::format("rank {}: failed as expected", rank));
  end->connect();  // the first to end has mpirun end the others
}

TEST_CASE("mpi: mismatches, timeouts and reasons reach every rank" * doctest::test_suite("slow")) {
  if (!can_start()) return;
  const MpiJob job = start(3, "mpi rank: what fails");
  INFO(job.out);
  CHECK(job.count(": failed as expected\n") == 3);
  CHECK(job.code != 0);  // a program with a failure in it does not end well by mistake
}

// ---- how jobs end ----

void work_until(const std::function<void(int rank)>& fault) {
  if (!is_rank()) return;
  const std::unique_ptr<Communicator> comm = mpi_fabric(Seconds(200))->connect();
  const Tensor data = Tensor::zeros({1000});
  for (int step = 0; step < 100; ++step) {
    if (step == 50) {
      say("in the middle");
      comm->barrier("middle").wait();
      fault(comm->rank());
    }
    comm->all_reduce(data, "bucket 0").wait();
  }
}

TEST_CASE("mpi rank: killed" * doctest::skip()) {
  work_until([](int rank) {
    if (rank == 1) ::raise(SIGKILL);
  });
}
TEST_CASE("mpi rank: exits" * doctest::skip()) {
  work_until([](int rank) {
    if (rank == 1) std::exit(0);
  });
}
TEST_CASE("mpi rank: throws" * doctest::skip()) {
  work_until([](int rank) { check<DataError>(rank != 1, "no such file"); });
}

TEST_CASE("mpi: when a rank ends early, so does the job, and not well" *
          doctest::test_suite("slow")) {
  if (!can_start()) return;
  for (const char* how : {"killed", "exits", "throws"}) {
    CAPTURE(how);
    const MpiJob job = start(3, fmt::format("mpi rank: {}", how));
    INFO(job.out);
    CHECK(job.count("in the middle\n") == 3);
    CHECK(job.code != 0);
    CHECK_FALSE(contains(job.out, "timeout"));  // neither mpirun's nor ours
    CHECK_FALSE(contains(job.out, "timed out"));
  }
}

}  // namespace
}  // namespace lockstep::dist
