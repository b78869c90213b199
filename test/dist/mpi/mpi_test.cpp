// The communicator over MPI: what works. (mpi_failure_test.cpp: what does not.)

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "dist/collectives/exercise.h"
#include "lockstep/core/hash.h"
#include "mpi_job.h"

namespace lockstep::dist {
namespace {

using namespace testing;

// 16-bit elements are added up in f32 and rounded once. From `base` on T holds every integer for a
// while, but not the sums of several: rounding at every hop would show.
template <class T>
void exercise_narrow(Communicator& comm, int base) {
  const std::int64_t count = 7 * 42'858;  // several pieces
  const auto element = [base](int rank, std::int64_t i) {
    return static_cast<float>(base + (7 * i + 3 * rank) % 61);
  };
  const auto sum = [&](std::int64_t i) {
    float total = 0;
    for (int r = 0; r < comm.size(); ++r) total += element(r, i);
    return total;
  };
  const Tensor data = Tensor::empty({7, count / 7}, dtype_of<T>());
  const auto refill = [&] {
    for (std::int64_t i = 0; i < count; ++i)
      data.data<T>()[i] = static_cast<T>(element(comm.rank(), i));
  };
  refill();
  comm.all_reduce(data, "narrow").wait();
  expect_elements<T>("all_reduce in 16 bits", comm.rank(), data, 0, sum);
  refill();
  const Range own = partition(count, comm.size(), comm.rank());
  const Tensor part = Tensor::empty({own.size()}, dtype_of<T>());
  comm.reduce_scatter(data, part, "narrow").wait();
  expect_elements<T>("reduce_scatter in 16 bits", comm.rank(), part, own.begin, sum);
}

void exercise_everything(Communicator& comm) {
  for (const std::int64_t count : {0, 1, 5, 1001, 100'003}) exercise<float>(comm, count);
  for (const std::int64_t count : {0, 1, 257}) {
    exercise<double>(comm, count);
    exercise<std::int32_t>(comm, count);
    exercise<std::int64_t>(comm, count);
  }
  exercise<float>(comm, 1'100'003);       // more pieces than are under way at once
  exercise<std::int64_t>(comm, 131'073);  // two pieces and one element
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
  exercise_narrow<BFloat16>(comm, 137);
  exercise_narrow<Half>(comm, 1031);
}

// Input and output that share memory: the own part is a slice of the whole.
void exercise_aliases(Communicator& comm) {
  const std::int64_t count = 1003;
  const Range own = partition(count, comm.size(), comm.rank());
  const Tensor whole = Tensor::empty({count});
  fill<float>(whole, comm.rank());
  const Tensor part = whole.slice(own.begin, own.end);
  comm.reduce_scatter(whole, part, "in place").wait();
  expect_elements<float>("reduce_scatter in place", comm.rank(), part, own.begin,
                         [&](std::int64_t i) { return sum_of_values(comm.size(), i); });
  comm.all_gather(part, whole, "in place").wait();
  expect_elements<float>("all_gather in place", comm.rank(), whole, 0,
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
    check<DataError>(work.progress(), "call {} is not done", k);
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

/// Each `step`-th rank in [begin, end).
std::vector<int> ranks(int begin, int end, int step = 1) {
  std::vector<int> members;
  for (int rank = begin; rank < end; rank += step) members.push_back(rank);
  return members;
}

void exercise_groups(Fabric& world) {
  const int rank = world.rank(), size = world.size();
  const std::shared_ptr<Fabric> halves = world.split(ranks(rank % 2, size, 2));
  const std::shared_ptr<Fabric> alone = world.split({rank});
  const std::shared_ptr<Fabric> others = world.split(ranks(1, rank == 0 ? 1 : size));
  check<DataError>((others == nullptr) == (rank == 0), "rank {} is in no group", rank);
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
  const int begin = halves->rank() / 2 * 2;  // of a group of a group
  const auto pair = halves->split(ranks(begin, std::min(begin + 2, halves->size())));
  exercise<float>(*pair->connect(), 33);
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
  CHECK(comm->flight_record().find(comm->size() == 1 ? "done when" : "done after") !=
        std::string::npos);
  CHECK_THROWS_AS(comm->all_reduce(Tensor::zeros({3}, DType::u8), "x"), DTypeError);
  CHECK_THROWS_AS(comm->broadcast(Tensor::zeros({3}), comm->size(), "x"), CommError);
  say(fmt::format("rank {} of {}: all well", comm->rank(), comm->size()));
}

TEST_CASE("mpi: all operations, groups, queues, pieces" * doctest::test_suite("slow")) {
  if (!can_start()) return;
  for (const int world : {1, 2, 3, 4, 7}) {
    CAPTURE(world);
    const MpiJob job = start(world, "mpi rank: what works");
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
  const MpiJob other = shell(
      "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 LOCKSTEP_JOB=test "
      "LOCKSTEP_RENDEZVOUS=unix:/nowhere " +
      alone);
  CAPTURE(other.out);
  CHECK(other.count(
            "lockstep-run has started the world's 2 ranks, not MPI: start them with mpirun") == 1);
  const MpiJob by_hand = shell(
      "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_PORT=1 MASTER_ADDR=localhost " +
      alone);
  CAPTURE(by_hand.out);
  CHECK(by_hand.count("has 2 ranks, MPI's has 1: start them with mpirun") == 1);
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
