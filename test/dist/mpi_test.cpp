// The communicator over MPI. This program starts itself under mpirun; its ranks run the test cases
// that are skipped otherwise.

#include "lockstep/dist/mpi.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "exercise.h"
#include "lockstep/dist/hash.h"

namespace lockstep::dist {
namespace {

using namespace testing;

const Seconds limit(30);

struct Job {
  int code;  // exit code of mpirun, or -1 if a signal ended it
  std::string out;
  int count(const std::string& text) const {
    int times = 0;
    for (std::size_t at = 0; (at = out.find(text, at)) != std::string::npos; at += text.size())
      ++times;
    return times;
  }
};

Job shell(const std::string& command) {
  std::FILE* const pipe = ::popen((command + " 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Job job{-1, {}};
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe))
    job.out.append(buffer, got);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) job.code = WEXITSTATUS(status);
  return job;
}

bool can_start() {
  if (mpi_available() && shell("mpirun --version").out.find("Open MPI") != std::string::npos)
    return true;
  const std::string why =
      mpi_available() ? "there is no Open MPI's mpirun" : "this build has no MPI";
  MESSAGE("skipped: ", why);
  return false;
}

// Rank processes that run `test_case`. mpirun ends what hangs, and says so; it may hang itself.
Job start(int ranks, const std::string& test_case) {
  return shell(fmt::format(
      "timeout --signal=KILL 90 mpirun --allow-run-as-root --oversubscribe --timeout 60 -n {} "
      "'{}' --no-skip '-tc={}'",
      ranks, std::filesystem::read_symlink("/proc/self/exe").string(), test_case));
}

// Whether this process was started by mpirun, and not by hand with --no-skip.
bool is_rank() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

// ---- what works ----

void exercise_everything(Communicator& comm) {
  for (const std::int64_t count : {0, 1, 5, 1001, 100'003}) exercise<float>(comm, count);
  for (const std::int64_t count : {0, 1, 257}) {
    exercise<double>(comm, count);
    exercise<std::int32_t>(comm, count);
    exercise<std::int64_t>(comm, count);
  }
  exercise<float>(comm, 600'001);  // several pieces, and the last one of one element at most
  exercise_broadcast<std::uint8_t>(comm, 1, comm.size() - 1);
  const Tensor ranks = Tensor::zeros({comm.size()}, DType::u8);
  comm.all_gather(Tensor::full({1}, comm.rank() + 7, DType::u8), ranks, "ranks").wait();
  for (int r = 0; r < comm.size(); ++r)
    check<DataError>(ranks.data<std::uint8_t>()[r] == r + 7, "rank {} gave {}", r,
                     ranks.data<std::uint8_t>()[r]);
  const Tensor all = Tensor::zeros({comm.size(), 2}, DType::bf16);  // parts are not rows
  comm.all_gather(Tensor::full({2}, comm.rank(), DType::bf16), all, "bf16").wait();
  const auto last = static_cast<float>(all.data<BFloat16>()[2 * comm.size() - 1]);
  check<DataError>(last == static_cast<float>(comm.size() - 1), "the last bf16 is {}", last);
}

// Input and output that share memory: the own part is a slice of the whole.
void exercise_aliases(Communicator& comm) {
  const std::int64_t count = 1003;
  const Range own = partition(count, comm.size(), comm.rank());
  const Tensor whole = Tensor::empty({count});
  fill<float>(whole, comm.rank());
  const Tensor part = whole.slice(own.begin, own.end);
  comm.reduce_scatter(whole, part, "in place").wait();
  expect<float>("reduce_scatter in place", comm.rank(), part, own.begin,
                [&](std::int64_t i) { return sum_of_values(comm.size(), i); });
  comm.all_gather(part, whole, "in place").wait();
  expect<float>("all_gather in place", comm.rank(), whole, 0,
                [&](std::int64_t i) { return sum_of_values(comm.size(), i); });
}

void exercise_queue(Communicator& comm) {
  constexpr std::int64_t calls = 300;  // more than the queue holds
  std::vector<Tensor> tensors;
  std::vector<Work> works;
  for (std::int64_t k = 0; k < calls; ++k) {
    tensors.push_back(Tensor::full({k % 5}, static_cast<double>(k + comm.rank())));
    works.push_back(comm.all_reduce(tensors.back(), "many"));
  }
  works[static_cast<std::size_t>(comm.rank()) * 10 + 50].wait();
  works.back().wait();
  const int world = comm.size();
  for (std::int64_t k = 0; k < calls; ++k) {
    Work& work = works[static_cast<std::size_t>(k)];
    check<DataError>(work.progress() && !work.exception(), "call {} is not done", k);
    for (const float x : tensors[static_cast<std::size_t>(k)].span<float>())
      check<DataError>(x == static_cast<float>(world * k + world * (world - 1) / 2), "call {}: {}",
                       k, x);
  }
}

// Sums that round have the same bits on every rank, and a second time.
void exercise_same_bits(Communicator& comm) {
  for (const std::int64_t count : {1, 100, 10'007, 300'007}) {
    const Tensor hashes = Tensor::zeros({2 * comm.size()}, DType::i64);
    const Tensor mine = Tensor::zeros({2}, DType::i64);
    for (int attempt = 0; attempt < 2; ++attempt) {
      const Tensor data = Tensor::empty({count});
      for (std::int64_t i = 0; i < count; ++i)
        data.data<float>()[i] = rounding_value(comm.rank(), i);
      comm.all_reduce(data, "rounding").wait();
      mine.data<std::int64_t>()[attempt] = static_cast<std::int64_t>(
          fnv1a({reinterpret_cast<const char*>(data.raw()), data.bytes()}));
    }
    comm.all_gather(mine, hashes, "hashes").wait();
    for (const std::int64_t hash : hashes.span<std::int64_t>())
      check<DataError>(hash == hashes.data<std::int64_t>()[0], "{} elements differ between ranks",
                       count);
  }
}

void exercise_groups(Fabric& world) {
  const int rank = world.rank(), size = world.size();
  const std::shared_ptr<Fabric> halves = world.split(rank % 2);
  const std::shared_ptr<Fabric> alone = world.split(rank);
  const std::shared_ptr<Fabric> others = world.split(rank == 0 ? -1 : 7);
  check<DataError>((others == nullptr) == (rank == 0), "a negative color, rank {}", rank);
  check<DataError>(halves->size() == (size + 1 - rank % 2) / 2 && halves->rank() == rank / 2,
                   "rank {} is {} of {}", rank, halves->rank(), halves->size());
  check<DataError>(alone->size() == 1 && alone->rank() == 0, "not alone");

  // All at once, and begun in an order that differs between the halves.
  const auto half = halves->connect(), everybody = world.connect();
  const std::unique_ptr<Communicator> rest = others ? others->connect() : nullptr;
  const Tensor a = Tensor::full({1000}, rank), b = Tensor::full({1000}, rank),
               c = Tensor::full({1000}, rank);
  Work first, second, third;
  if (rank % 2 == 0) first = half->all_reduce(a, "half");
  second = everybody->all_reduce(b, "everybody");
  if (rest) third = rest->all_reduce(c, "rest");
  if (rank % 2 == 1) first = half->all_reduce(a, "half");
  third.wait();
  first.wait();
  second.wait();
  const float total = static_cast<float>(size * (size - 1) / 2);
  float same = 0;
  for (int r = rank % 2; r < size; r += 2) same += static_cast<float>(r);
  check<DataError>(a.data<float>()[999] == same, "half: {}, not {}", a.data<float>()[999], same);
  check<DataError>(b.data<float>()[999] == total, "everybody: {}", b.data<float>()[999]);
  if (rest) check<DataError>(c.data<float>()[999] == total, "rest: {}", c.data<float>()[999]);
  exercise<float>(*half, 333);
  exercise<float>(*alone->connect(), 333);
  exercise<float>(*halves->split(halves->rank() / 2)->connect(), 33);  // a group of a group
}

TEST_CASE("mpi rank: what works" * doctest::skip()) {
  if (!is_rank()) return;
  const std::shared_ptr<Fabric> fabric = mpi_fabric(limit);
  CHECK(fabric->transport() == "mpi");
  const std::unique_ptr<Communicator> comm = fabric->connect();
  exercise_everything(*comm);
  exercise_aliases(*comm);
  exercise_queue(*comm);
  exercise_same_bits(*comm);
  exercise_groups(*fabric);
  CHECK(comm->algorithm(4) == "mpi");
  CHECK((comm->size() == 1 || comm->waited() > Seconds(0)));
  CHECK(comm->flight_record().find("done after") != std::string::npos);
  CHECK_THROWS_AS(comm->all_reduce(Tensor::zeros({3}, DType::u8), "x"), DTypeError);
  CHECK_THROWS_AS(comm->broadcast(Tensor::zeros({3}), comm->size(), "x"), CommError);

  const std::shared_ptr<Fabric> fine = mpi_fabric(limit, 64);  // bytes in a piece
  exercise<float>(*fine->connect(), 1003);
  exercise<std::int64_t>(*fine->connect(), 77);
  exercise_aliases(*fine->connect());
  say(fmt::format("rank {} of {}: all well", comm->rank(), comm->size()));
}

TEST_CASE("mpi: all operations, groups, queues, pieces") {
  if (!can_start()) return;
  for (const int world : {1, 2, 3, 4, 7}) {
    CAPTURE(world);
    const Job job = start(world, "mpi rank: what works");
    INFO(job.out);
    CHECK(job.code == 0);
    CHECK(job.count(fmt::format("of {}: all well\n", world)) == world);
  }
}

// ---- without mpirun ----

TEST_CASE("mpi rank: alone" * doctest::skip()) {
  if (std::getenv("LOCKSTEP_TEST_ALONE") == nullptr) return;
  try {
    exercise<float>(*mpi_fabric(limit)->connect(), 1001);
    say("alone: all well");
  } catch (const UsageError& error) {
    say(error.what());
  }
}

TEST_CASE("mpi: a process started alone is a world of 1; one of another launcher's is refused") {
  if (!can_start()) return;
  const std::string alone =
      fmt::format("LOCKSTEP_TEST_ALONE=1 '{}' --no-skip '-tc=mpi rank: alone'",
                  std::filesystem::read_symlink("/proc/self/exe").string());
  CHECK(shell(alone).count("alone: all well\n") == 1);
  const Job other = shell(
      "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 LOCKSTEP_JOB=test "
      "LOCKSTEP_STORE=unix:/nowhere " +
      alone);
  CAPTURE(other.out);
  CHECK(other.count("has 2 ranks, MPI's has 1: start them with mpirun") == 1);
}

// ---- what fails ----

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

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
  if (rank == 2) ::usleep(1'500'000);  // three times the timeout
  bool echo = false;
  const std::string text =
      error_of([&] { comm.all_reduce(data, "late").wait(Seconds(rank == 2 ? 30 : 0.5)); }, &echo);
  // Who of the two is first, tells the others.
  check<DataError>(rank != 2 || echo, "rank 2 itself timed out: {}", text);
  if (echo) expect_text(text, "gave up in all_reduce #1 'late': ");
  expect_text(text,
              "timed out after 0.5 s, waiting for rank 2 (agreeing on the call); this rank "
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
  const auto call = [&] { rank == 0 ? void(fabric.connect()) : void(fabric.split(1)); };
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

TEST_CASE("mpi: mismatches, timeouts and reasons reach every rank") {
  if (!can_start()) return;
  const Job job = start(3, "mpi rank: what fails");
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

TEST_CASE("mpi: when a rank ends early, so does the job, and not well") {
  if (!can_start()) return;
  for (const char* how : {"killed", "exits", "throws"}) {
    CAPTURE(how);
    const Job job = start(3, fmt::format("mpi rank: {}", how));
    INFO(job.out);
    CHECK(job.count("in the middle\n") == 3);
    CHECK(job.code != 0);
    CHECK_FALSE(contains(job.out, "timeout"));  // neither mpirun's nor ours
    CHECK_FALSE(contains(job.out, "timed out"));
  }
}

TEST_CASE("mpi: a build without it says what is missing") {
  if (mpi_available()) return;
  CHECK_THROWS_WITH_AS(
      mpi_fabric(limit),
      "[mpi] this build has no MPI: install libopenmpi-dev and openmpi-bin and build again",
      UsageError);
}

}  // namespace
}  // namespace lockstep::dist
