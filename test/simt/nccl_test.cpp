/// Simulated NCCL: what its operations compute, among threads and among processes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstring>

#include "simt/nccl_support.h"

namespace simt::test {
namespace {

/// Small enough that the sum over 8 ranks is exact in every type.
int value(int rank, std::size_t i) { return static_cast<int>((i * 7 + rank * 5) % 16); }

int sum(int world, std::size_t i) {
  int total = 0;
  for (int rank = 0; rank < world; ++rank) total += value(rank, i);
  return total;
}

template <class T>
std::vector<T> values(int rank, std::size_t count) {
  std::vector<T> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(static_cast<T>(value(rank, i)));
  return made;
}

template <class T, class F>
void expect_values(const std::vector<T>& got, const char* what, F expected) {
  for (std::size_t i = 0; i < got.size(); ++i)
    expect(static_cast<double>(got[i]) == expected(i), "{}: element {} is {}, not {}", what, i,
           static_cast<double>(got[i]), expected(i));
}

/// All collectives with `count` elements, in place and not.
template <class T>
void collectives(Rank& rank, ncclDataType_t type, std::size_t count) {
  const int me = rank.rank(), world = rank.world();
  const std::size_t all = count * world;
  const auto each = [&](bool in_place, auto operation, std::size_t from, std::size_t to,
                        std::size_t shift_from, std::size_t shift_to, auto expected,
                        const char* what) {
    const Buffer<T> source(values<T>(me, from)), target(to);
    const bool from_is_larger = from >= to;
    T* base = from_is_larger ? source : target;
    if (in_place && !from_is_larger)
      expect_ok(cudaMemcpyAsync(base + shift_from, source, from * sizeof(T), cudaMemcpyDefault,
                                rank.stream()));
    expect_ok(in_place ? operation(base + shift_from, base + shift_to) : operation(source, target));
    rank.synchronize();
    std::vector<T> got =
        in_place ? (from_is_larger ? source.read() : target.read()) : target.read();
    if (in_place)
      got = std::vector<T>(got.begin() + static_cast<std::ptrdiff_t>(shift_to),
                           got.begin() + static_cast<std::ptrdiff_t>(shift_to + to));
    expect_values(got, what, expected);
  };
  const auto all_reduce = [&](const T* from, T* to) {
    return ncclAllReduce(from, to, count, type, ncclSum, rank.comm, rank.stream());
  };
  const auto reduce_scatter = [&](const T* from, T* to) {
    return ncclReduceScatter(from, to, count, type, ncclSum, rank.comm, rank.stream());
  };
  const auto all_gather = [&](const T* from, T* to) {
    return ncclAllGather(from, to, count, type, rank.comm, rank.stream());
  };
  for (const bool in_place : {false, true}) {
    each(
        in_place, all_reduce, count, count, 0, 0, [&](std::size_t i) { return sum(world, i); },
        "all-reduce");
    each(
        in_place, reduce_scatter, all, count, 0, me * count,
        [&](std::size_t i) { return sum(world, me * count + i); }, "reduce-scatter");
    each(
        in_place, all_gather, count, all, me * count, 0,
        [&](std::size_t i) { return value(static_cast<int>(i / count), i % count); }, "all-gather");
    for (const int root : {0, world - 1}) {
      const auto broadcast = [&](const T* from, T* to) {
        return ncclBroadcast(from, to, count, type, root, rank.comm, rank.stream());
      };
      each(
          in_place, broadcast, count, count, 0, 0, [&](std::size_t i) { return value(root, i); },
          "broadcast");
    }
  }
}

TEST_CASE("nccl: collectives of every type, in place and not" * doctest::test_suite("not-races")) {
  for_every_world([](Ranks ranks, int world) {
    run_ranks(ranks, world, [&](Common& common, int rank) {
      Rank me(common, rank, world);
      collectives<float>(me, ncclFloat32, 1);
      collectives<float>(me, ncclFloat32, 70001);  // more than the channels hold
      collectives<double>(me, ncclFloat64, 7);
      collectives<std::int32_t>(me, ncclInt32, 7);
      collectives<std::int64_t>(me, ncclInt64, 7);
      collectives<std::uint8_t>(me, ncclUint8, 1000);
      collectives<__half>(me, ncclFloat16, 7);
      collectives<__nv_bfloat16>(me, ncclBfloat16, 7);
      me.destroy();
    });
  });
}

TEST_CASE("nccl: sums that are rounded have the same bits on all ranks") {
  for_every_world([](Ranks ranks, int world) {
    if (world == 1) return;
    const Board<std::array<std::uint64_t, 8>> digests;
    run_ranks(ranks, world, [&](Common& common, int rank) {
      Rank me(common, rank, world);
      const std::size_t count = 5000;
      std::vector<float> start(count);
      std::vector<double> exact(count);
      for (int r = 0; r < world; ++r)
        for (std::size_t i = 0; i < count; ++i) {
          const float x = 1.0f / static_cast<float>(1 + i * 8 + r);
          exact[i] += static_cast<double>(x);
          if (r == rank) start[i] = x;
        }
      const Buffer<float> data(start);
      expect_ok(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, me.comm, me.stream()));
      me.synchronize();
      std::uint64_t digest = 0;
      const std::vector<float> got = data.read();
      for (std::size_t i = 0; i < count; ++i) {
        digest = digest * 1000003 + std::bit_cast<std::uint32_t>(got[i]);
        const double error = std::abs(static_cast<double>(got[i]) / exact[i] - 1);
        expect(error < 1e-6, "element {}: off by {}", i, error);
      }
      (*digests)[rank] = digest;
    });
    for (int rank = 1; rank < world; ++rank) CHECK((*digests)[rank] == (*digests)[0]);
  });
}

TEST_CASE("nccl: bf16 rounds after each addition") {
  run_ranks(Ranks::threads, 3, [](Common& common, int rank) {
    Rank me(common, rank, 3);
    const float start[] = {256, 1, 1};  // 257 is between 256 and 258: ties to even
    const Buffer<__nv_bfloat16> data(std::vector<__nv_bfloat16>{start[rank]});
    expect_ok(ncclAllReduce(data, data, 1, ncclBfloat16, ncclSum, me.comm, me.stream()));
    me.synchronize();
    expect(static_cast<float>(data.read()[0]) == 256, "{}", static_cast<float>(data.read()[0]));
  });
}

TEST_CASE("nccl: groups of sends and receives, to itself too, of more than the channels hold") {
  for_every_world([](Ranks ranks, int world) {
    run_ranks(ranks, world, [&](Common& common, int rank) {
      Rank me(common, rank, world);
      for (const std::size_t count : {1, 3, 100001}) {
        std::vector<int> start(count * world);
        for (std::size_t i = 0; i < start.size(); ++i) start[i] = static_cast<int>(i) * 10 + rank;
        const Buffer<int> from(start), to(count * world);
        expect_ok(ncclGroupStart());
        for (int peer = 0; peer < world; ++peer) {
          expect_ok(ncclSend(from + peer * count, count, ncclInt32, peer, me.comm, me.stream()));
          expect_ok(ncclRecv(to + peer * count, count, ncclInt32, peer, me.comm, me.stream()));
        }
        expect_ok(ncclGroupEnd());
        me.synchronize();
        expect_values(to.read(), "all to all", [&](std::size_t i) {
          return static_cast<double>((rank * count + i % count) * 10 + i / count);
        });
      }
      me.destroy();
    });
  });
}

TEST_CASE("nccl: a message from one rank to another is nobody else's business") {
  run_ranks(Ranks::processes, 4, [](Common& common, int rank) {
    Rank me(common, rank, 4);
    const Buffer<int> data(std::vector<int>{rank});
    if (rank == 1) expect_ok(ncclSend(data, 1, ncclInt32, 3, me.comm, me.stream()));
    if (rank == 3) expect_ok(ncclRecv(data, 1, ncclInt32, 1, me.comm, me.stream()));
    me.synchronize();
    expect(data.read()[0] == (rank == 3 ? 1 : rank), "rank {} has {}", rank, data.read()[0]);
    common.meeting.meet(4);
  });
}

TEST_CASE("nccl: a group of collectives, and the order of several streams") {
  for_every_world([](Ranks ranks, int world) {
    run_ranks(ranks, world, [&](Common& common, int rank) {
      Rank me(common, rank, world);
      const Buffer<int> a(values<int>(rank, 100)), b(values<int>(rank, 3)), c(std::size_t(3));
      expect_ok(ncclGroupStart());
      expect_ok(ncclAllReduce(a, a, 100, ncclInt32, ncclSum, me.comm, me.stream()));
      expect_ok(ncclGroupStart());
      expect_ok(ncclBroadcast(b, b, 3, ncclInt32, world - 1, me.comm, me.stream()));
      expect_ok(ncclGroupEnd());
      expect(cudaStreamQuery(me.stream()) == cudaSuccess, "enqueued before the group's end");
      expect_ok(ncclAllReduce(b, c, 3, ncclInt32, ncclSum, me.comm, me.stream()));
      expect_ok(ncclGroupEnd());
      me.synchronize();
      expect_values(a.read(), "first", [&](std::size_t i) { return sum(world, i); });
      expect_values(c.read(), "third", [&](std::size_t i) { return world * value(world - 1, i); });

      // Issued in the same order everywhere, as NCCL asks for; but the streams have none.
      cudaStream_t other = nullptr;
      expect_ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
      const Buffer<int> d(values<int>(rank, 5));
      for (int round = 0; round < 6; ++round) {
        expect_ok(ncclAllReduce(c, c, 3, ncclInt32, ncclSum, me.comm, me.stream()));
        expect_ok(ncclBroadcast(d, d, 5, ncclInt32, round % world, me.comm, other));
      }
      expect_ok(cudaStreamSynchronize(rank % 2 ? other : me.stream()));
      expect_ok(cudaStreamSynchronize(rank % 2 ? me.stream() : other));
      expect_values(d.read(), "broadcasts", [&](std::size_t i) { return value(0, i); });
      expect_ok(cudaStreamDestroy(other));
      me.destroy();
    });
  });
}

TEST_CASE("nccl: captured operations meet again at every launch") {
  for_every_world([](Ranks ranks, int world) {
    run_ranks(ranks, world, [&](Common& common, int rank) {
      Rank me(common, rank, world);
      const Buffer<int> a(std::vector<int>{rank + 1}), gathered(world);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      expect_ok(cudaStreamBeginCapture(me.stream(), cudaStreamCaptureModeThreadLocal));
      expect_ok(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, me.comm, me.stream()));
      expect_ok(ncclAllGather(a, gathered, 1, ncclInt32, me.comm, me.stream()));
      expect_ok(cudaStreamEndCapture(me.stream(), &graph));
      expect_ok(cudaGraphInstantiate(&exec, graph));
      expect(a.read()[0] == rank + 1, "run by the capture");
      int expected = world * (world + 1) / 2;
      for (int launches = 0; launches < 4; ++launches, expected *= world)
        expect_ok(cudaGraphLaunch(exec, me.stream()));
      expect_ok(ncclAllReduce(a, a, 1, ncclInt32, ncclSum, me.comm, me.stream()));
      me.synchronize();
      expect_values(a.read(), "after four launches", [&](std::size_t) { return expected; });
      expect_values(gathered.read(), "gathered", [&](std::size_t) { return expected / world; });
      expect_ok(cudaGraphExecDestroy(exec));
      expect_ok(cudaGraphDestroy(graph));
      me.destroy();
    });
  });
}

TEST_CASE("nccl: a communicator is split into groups, some ranks in none") {
  for (const bool blocking : {true, false})
    for_every_world([blocking](Ranks ranks, int world) {
      run_ranks(ranks, world, [&](Common& common, int rank) {
        Rank me(common, rank, world, blocking);
        for (int round = 0; round < 2; ++round) {
          // Even and odd ranks, in reverse order; the last of an odd number of ranks in neither.
          const bool outside = world % 2 == 1 && rank == world - 1;
          ncclComm_t part = nullptr;
          const ncclResult_t result = ncclCommSplit(
              me.comm, outside ? NCCL_SPLIT_NOCOLOR : rank % 2, -rank, &part, nullptr);
          expect((part == nullptr) == outside, "a communicator of no color");
          expect_ok(settle(me.comm, blocking ? result : ncclInProgress));
          if (outside) continue;
          expect_ok(blocking ? result : settle(part));
          int size = 0, number = -1, device = -1;
          expect_ok(ncclCommCount(part, &size));
          expect_ok(ncclCommUserRank(part, &number));
          expect_ok(ncclCommCuDevice(part, &device));
          expect(size == world / 2, "{} ranks", size);
          expect(number == size - 1 - rank / 2, "rank {} is {} of {}", rank, number, size);
          expect(device == rank, "device {}", device);
          const Buffer<int> data(std::vector<int>{rank});
          expect_ok(
              settle(part, ncclAllReduce(data, data, 1, ncclInt32, ncclSum, part, me.stream())));
          me.synchronize();
          int expected = 0;
          for (int r = rank % 2; r < world / 2 * 2; r += 2) expected += r;
          expect(data.read()[0] == expected, "sum {}, not {}", data.read()[0], expected);
          expect_ok(ncclCommDestroy(part));
        }
        common.meeting.meet(world);
      });
    });
}

}  // namespace
}  // namespace simt::test
