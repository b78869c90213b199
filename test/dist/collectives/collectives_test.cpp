// Collectives between threads: real concurrency, which ThreadSanitizer can see.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "dist/collectives/exercise.h"
#include "lockstep/core/memory.h"
#include "lockstep/dist/transport/transports.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t large = 200'003;
#else
constexpr std::int64_t large = 10'000'000;
#endif

template <class F>
void run(int world, CommunicatorOptions options, F f, ThreadsOptions threads = {}) {
  CAPTURE(world);
  const auto errors = on_threads(threads_transports(world, threads),
                                 [&](int, std::unique_ptr<Transport> transport) {
                                   HostCommunicator comm(std::move(transport), options);
                                   f(comm);
                                 });
  for (const std::exception_ptr& error : errors) CHECK(message_of(error) == "");
}

}  // namespace

TEST_CASE("threads: every operation, world, size and algorithm" * doctest::test_suite("slow")) {
  for (const Algorithm algorithm : every_algorithm) {
    for (const int world : {1, 2, 3, 4, 7, 8}) {  // plan_test has the others
      run(world, options_for(algorithm, world),
          [](Communicator& comm) {
            for (const std::int64_t count : {0, 1, 2, 5, 64, 1023}) exercise<float>(comm, count);
            exercise<double>(comm, 1001);
            exercise<std::int64_t>(comm, 77);
            exercise<std::int32_t>(comm, 78);
            exercise<float>(comm, 100'003);  // more than a block, and than the streams below hold
          },
          {.stream_bytes = 64 * 1024});
    }
  }
}

TEST_CASE("threads: streams smaller than a header and than a block" * doctest::test_suite("slow")) {
  for (const Algorithm algorithm : every_algorithm) {
    for (const std::size_t stream_bytes : {16, 1024}) {
      const std::int64_t count = stream_bytes == 16 ? 311 : 20'011;
      run(3, options_for(algorithm, 3), [=](Communicator& comm) { exercise<double>(comm, count); },
          {.stream_bytes = stream_bytes});
    }
  }
}

TEST_CASE("threads: large tensors" * doctest::test_suite("slow")) {
  const auto in_a_window = [](Communicator& comm) {
    exercise_all_reduce<float>(comm, comm.allocate(large, DType::f32));
  };
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::two_shot}) {
    run(2, {.algorithm = algorithm}, [](Communicator& comm) {
      exercise_all_reduce<float>(comm, comm.allocate(large, DType::f32));
      exercise_all_reduce<float>(comm, Tensor::empty({large}));
    });
  }
  run(3, {}, [](Communicator& comm) { exercise_reduce_scatter<float>(comm, large); });
  run(3, {.algorithm = Algorithm::ring}, in_a_window);
  run(4, {.algorithm = Algorithm::ring}, in_a_window);
  run(7, {.algorithm = Algorithm::two_shot}, in_a_window);
}

TEST_CASE("threads: bytes travel by broadcast and all_gather, but are not summed") {
  run(3, {}, [](Communicator& comm) {
    const Tensor bytes = Tensor::full({5}, comm.rank() == 2 ? 200 : 1, DType::u8);
    comm.broadcast(bytes, 2, "flags").wait();
    check<DataError>(bytes.to_vector<std::uint8_t>() == std::vector<std::uint8_t>(5, 200), "flags");
    const Tensor all = Tensor::zeros({3}, DType::u8);
    comm.all_gather(Tensor::full({1}, comm.rank() + 7, DType::u8), all, "ranks").wait();
    check<DataError>(all.to_vector<std::uint8_t>() == std::vector<std::uint8_t>{7, 8, 9}, "ranks");
    bool refused = false;
    try {
      comm.all_reduce(all, "u8");
    } catch (const DTypeError&) {
      refused = true;
    }
    check<DataError>(refused, "an all_reduce of u8 was accepted");
  });
}

TEST_CASE("threads: whatever is not the ring folds in tree order, on every path, for every cut") {
  for (const Algorithm algorithm : tree_algorithms) {
    for (const int world : {2, 3, 4, 5, 6, 7, 8}) {
      run(world, {.algorithm = algorithm}, [](Communicator& comm) {
        exercise_tree_order(comm, Tensor::empty({5003}));
        const Tensor region = comm.allocate(7000, DType::f32);
        exercise_tree_order(comm, region);
        exercise_tree_order(comm, region.slice(13, 6001));
        exercise_tree_order(comm, region.slice(3, 4));
      });
    }
  }
  run(4, options_for(Algorithm::hierarchical, 4),  // nodes of two ranks: the tree's own subtrees
      [](Communicator& comm) { exercise_tree_order(comm, Tensor::empty({5003})); });
}

TEST_CASE("negative control: the ring's chain is not the tree") {
  // Were it equal, the test above could not tell orders apart.
  const auto errors =
      on_threads(threads_transports(5), [](int, std::unique_ptr<Transport> transport) {
        HostCommunicator comm(std::move(transport), {.algorithm = Algorithm::ring});
        exercise_tree_order(comm, Tensor::empty({5003}));
      });
  for (const auto& error : errors) CHECK(message_of(error).find("tree order") != std::string::npos);
}

TEST_CASE("threads: all ranks get the ring's bits, and get them again") {
  std::vector<std::vector<float>> results(8);
  for (const int attempt : {0, 4}) {
    run(4, {.algorithm = Algorithm::ring}, [&](Communicator& comm) {
      const Tensor tensor = Tensor::empty({999});
      for (std::int64_t i = 0; i < 999; ++i)
        tensor.data<float>()[i] = rounding_value(comm.rank(), i);
      comm.all_reduce(tensor, "ring").wait();
      results[static_cast<std::size_t>(attempt + comm.rank())] = tensor.to_vector<float>();
    });
  }
  for (const auto& result : results) CHECK(result == results[0]);
}

TEST_CASE("threads: many calls under way at once end in order, whoever is waited for") {
  run(3, {}, [](Communicator& comm) {
    constexpr std::int64_t calls = 700;  // more than the queue holds
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    for (std::int64_t k = 0; k < calls; ++k) {
      tensors.push_back(Tensor::full({k % 5}, static_cast<double>(k + comm.rank())));
      works.push_back(comm.all_reduce(tensors.back(), "many"));
    }
    works[static_cast<std::size_t>(comm.rank()) * 100 + 50].wait();
    works.back().wait();
    for (std::size_t k = 0; k < works.size(); ++k) {
      check<DataError>(works[k].progress(), "call {} is not done", k);
      for (const float x : tensors[k].span<float>()) {
        check<DataError>(x == static_cast<float>(3 * k + 3), "call {}: {}", k, x);
      }
    }
  });
}

#if !defined(__SANITIZE_ADDRESS__)  // there the allocator keeps nothing
TEST_CASE("threads: a steady stream of all-reduces asks the system for no memory") {
  run(2, {}, [](Communicator& comm) {
    const Tensor region = comm.allocate(1000, DType::f32);
    const Tensor apart = Tensor::zeros({1000});
    const auto step = [&] {
      comm.all_reduce(region, "region").wait();
      comm.all_reduce(apart, "apart").wait();
    };
    for (int i = 0; i < 10; ++i) step();
    const std::uint64_t before = memory::statistics().system_allocations;
    for (int i = 0; i < 200; ++i) step();
    // The count is the process's: the other rank may need its scratch at the same time for the
    // first time, or be on its way out of this world.
    const std::uint64_t more = memory::statistics().system_allocations - before;
    check<DataError>(more <= 4, "400 all-reduces asked the system {} times", more);
  });
}
#endif

TEST_CASE("threads: allocated memory is zeroed, outlives its communicator, and takes 0 elements") {
  run(2, {}, [](Communicator& comm) {
    check<DataError>(comm.allocate(0, DType::f32).numel() == 0, "allocate(0)");
    const Tensor tensor = comm.allocate(4097, DType::f64);
    for (const double x : tensor.span<double>()) check<DataError>(x == 0, "not zeroed: {}", x);
  });
  Tensor kept;
  {
    HostCommunicator alone(std::move(threads_transports(1)[0]));
    kept = alone.allocate(10, DType::f32);
  }
  kept.fill(3);
  CHECK(kept.to_vector<float>() == std::vector<float>(10, 3));
}

TEST_CASE("arguments that do not fit are refused before anything is sent") {
  HostCommunicator comm(std::move(threads_transports(1)[0]));
  const Tensor three = Tensor::zeros({3}), two = Tensor::zeros({2});
  CHECK_THROWS_AS(comm.reduce_scatter(three, two, "x"), ShapeError);
  CHECK_THROWS_AS(comm.all_gather(two, three, "x"), ShapeError);
  CHECK_THROWS_AS(comm.reduce_scatter(two, three, "x"), ShapeError);
  CHECK_THROWS_AS(comm.all_gather(three, two, "x"), ShapeError);
  CHECK_THROWS_AS(comm.all_gather(Tensor::zeros({3}, DType::f64), three, "x"), DTypeError);
  CHECK_THROWS_AS(comm.broadcast(three, 1, "x"), CommError);
  CHECK_THROWS_AS(comm.broadcast(three, -1, "x"), CommError);
  CHECK_NOTHROW(comm.all_reduce(three, "x").wait());
  CHECK_NOTHROW(Work().wait());
  CHECK(comm.algorithm(1) == "one-shot");
}

TEST_CASE("threads: the memory of all streams together is bounded") {
  const std::vector<std::byte> many(300'000);
  for (const auto& [world, capacity] : {std::pair{2, 256 * 1024}, {17, 128 * 1024}}) {
    CAPTURE_BINDING(world);
    const auto transports = threads_transports(world);
    CHECK(transports[0]->send(world - 1, many) == static_cast<std::size_t>(capacity));
  }
}

TEST_CASE("threads: memory can be allocated while calls are under way on some ranks") {
  run(3, {.timeout = Seconds(5)}, [](Communicator& comm) {
    const Tensor data = Tensor::full({300'000}, 1);  // more than the streams hold
    Work work = comm.all_reduce(data, "under way");
    if (comm.rank() != 1) work.wait();
    const Tensor more = comm.allocate(10, DType::f32);
    work.wait();
    check<DataError>(data.data<float>()[299'999] == 3, "sum");
  });
}

TEST_CASE("threads: a rank that gives up breaks its communicator and the others'") {
  std::vector<std::string> own;
  std::atomic<bool> aborted{false};  // until then the others do not join in: nothing can end well
  const auto errors =
      on_threads(threads_transports(3), [&](int rank, std::unique_ptr<Transport> t) {
        HostCommunicator comm(std::move(t));
        const Tensor tensor = Tensor::zeros({100});
        const Work first = comm.all_reduce(tensor, "first");
        Work(first).wait();
        if (rank != 1) {
          while (!aborted) std::this_thread::yield();
          comm.all_reduce(tensor, "second").wait();
          return;
        }
        Work under_way = comm.all_reduce(tensor, "second");
        comm.abort("rank 1 found a NaN");
        comm.abort("another reason");
        aborted = true;
        check<DataError>(Work(first).progress(), "what had ended well has failed");
        for (Work& work : std::array{under_way, comm.barrier("later")}) {
          try {
            work.wait();
          } catch (const PeerError&) {
            own.push_back("an echo");
          } catch (const CommError& error) {
            own.push_back(error.what());
          }
        }
      });
  CHECK(own == std::vector<std::string>(2, "rank 1 found a NaN"));
  for (const std::size_t r : {0, 2}) {
    REQUIRE(errors[r]);
    CHECK(message_of(errors[r]).find("rank 1 found a NaN") != std::string::npos);
    CHECK_THROWS_AS(std::rethrow_exception(errors[r]), PeerError);
  }
}

TEST_CASE("threads: a rank that leaves early is named by all who need it") {
  for (const int victim : {0, 1, 2}) {
    const auto errors =
        on_threads(threads_transports(3), [&](int rank, std::unique_ptr<Transport> t) {
          HostCommunicator comm(std::move(t));
          const Tensor tensor = Tensor::zeros({100});
          comm.all_reduce(tensor, "first").wait();
          if (rank == victim) return;
          comm.all_reduce(tensor, "second").wait();
        });
    for (int rank = 0; rank < 3; ++rank) {
      const std::string message = message_of(errors[static_cast<std::size_t>(rank)]);
      CAPTURE(message);
      if (rank == victim) {
        CHECK(message == "");
      } else {
        CHECK(message.find(fmt::format("rank {} left", victim)) != std::string::npos);
        CHECK(message.find("#1 'second'") != std::string::npos);
      }
    }
  }
}

TEST_CASE("threads: who only sends notices that the receiver has left") {
  const auto errors =
      on_threads(threads_transports(2), [&](int rank, std::unique_ptr<Transport> transport) {
        const std::vector<std::byte> bytes(1000);
        const Seconds end = transport->now() + Seconds(10);
        while (rank == 0 && transport->now() < end) transport->send(1, bytes);
      });
  CHECK(message_of(errors[0]).starts_with("rank 1 left: "));
}

TEST_CASE("threads: a call that has ended keeps no memory") {
  run(2, {}, [](Communicator& comm) {
    const Tensor data = Tensor::zeros({10}), part = Tensor::zeros({5});
    comm.all_reduce(data, "whole").wait();
    comm.all_gather(part, data, "parts").wait();
    check<Error>(data.storage().unique() && part.storage().unique(), "somebody holds them");
  });
}

TEST_CASE("threads: allocate waits no longer than the join timeout") {
  const auto errors = on_threads(threads_transports(2, {.join_timeout = Seconds(0.1)}),
                                 [&](int rank, std::unique_ptr<Transport> t) {
                                   HostCommunicator comm(std::move(t));
                                   if (rank == 0) comm.allocate(8, DType::f32);
                                   if (rank == 1) comm.barrier("end").wait();
                                 });
  CHECK(message_of(errors[0]).find("timed out after 0.1 s: rank 1 is missing") !=
        std::string::npos);
}

TEST_CASE("threads: ranks that finish at different times do not disturb each other") {
  for (int repeat = 0; repeat < 20; ++repeat) {
    run(4, {}, [](Communicator& comm) {
      const Tensor tensor = Tensor::full({1000}, 1);
      comm.all_reduce(tensor, "last").wait();  // and out: transports go in any order
      check<DataError>(tensor.data<float>()[999] == 4, "sum");
    });
  }
}
