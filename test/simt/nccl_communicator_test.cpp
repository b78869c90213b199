/// Simulated NCCL: how communicators come to be and end, and wrong calls.

#include <memory>

#include "simt/nccl_support.h"

namespace simt::test {
namespace {

TEST_CASE("nccl: two ranks on one GPU are refused, unless they say that they are on two hosts") {
  for (const bool two_hosts : {false, true})
    for (const bool blocking : {false, true})
      for_two_kinds([&](Ranks ranks) {
        if (two_hosts && ranks == Ranks::threads) return;  // they have one environment
        run_ranks(ranks, 2, [&](Common& common, int rank) {
          if (two_hosts) setenv("NCCL_HOSTID", rank ? "one" : "two", 1);
          ncclComm_t comm = nullptr;
          ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
          config.blocking = blocking;
          ncclResult_t result =
              ncclCommInitRankConfig(&comm, 2, unique_id(common, rank), rank, &config);
          if (!blocking) result = settle(comm, result);
          expect(result == (two_hosts ? ncclSuccess : ncclInvalidUsage), "{}",
                 ncclGetErrorString(result));
          if (!two_hosts)
            expect(contains(ncclGetLastError(comm), "Duplicate GPU detected : rank 1 and rank 0"),
                   "{}", ncclGetLastError(comm));
          expect((comm == nullptr) == (blocking && !two_hosts), "a handle");
          expect_ok(ncclCommAbort(comm));
        });
      });
}

TEST_CASE("nccl: a communicator that does not block is in progress until all ranks are there") {
  for_two_kinds([](Ranks ranks) {
    run_ranks(ranks, 2, [](Common& common, int rank) {
      expect_ok(cudaSetDevice(rank));
      const ncclUniqueId id = unique_id(common, rank);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t comm = nullptr;
      ncclResult_t state{};
      if (rank == 1) await([&] { return common.step == 1; });
      const ncclResult_t result = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
      expect(comm != nullptr, "no handle");
      if (rank == 0) {
        expect(result == ncclInProgress, "complete, and alone");
        for (int i = 0; i < 10; ++i) {
          expect_ok(ncclCommGetAsyncError(comm, &state));
          expect(state == ncclInProgress, "complete, and alone");
        }
        int count = 0;
        expect(ncclCommCount(comm, &count) == ncclInvalidArgument, "used before it is there");
        common.step = 1;
      }
      expect_ok(settle(comm, result));

      // Connects at its first operation: what is enqueued before that has settled comes before it.
      const Buffer<float> data(std::vector<float>{1, 2});
      const auto reduce = [&] {
        return ncclAllReduce(data, data, 2, ncclFloat32, ncclSum, comm, nullptr);
      };
      expect(reduce() == ncclInProgress, "the first operation");
      expect(reduce() == ncclInvalidArgument, "the next one, too early");
      expect_ok(ncclCommGetAsyncError(comm, &state));
      expect(state == ncclInProgress, "settled at once");
      expect(data.read() == std::vector<float>{1, 2}, "enqueued already");
      expect_ok(settle(comm));
      expect(data.read() == std::vector<float>{2, 4}, "enqueued");
      expect_ok(reduce());
      expect(data.read() == std::vector<float>{4, 8}, "a second one");

      // All have to finalize it.
      if (rank == 1) await([&] { return common.step == 2; });
      const ncclResult_t finalized = ncclCommFinalize(comm);
      if (rank == 0) {
        expect(finalized == ncclInProgress, "finalized alone");
        expect_ok(ncclCommGetAsyncError(comm, &state));
        expect(state == ncclInProgress, "finalized alone");
        common.step = 2;
      }
      expect_ok(settle(comm, finalized));
      expect(reduce() == ncclInvalidArgument, "after that");
      expect_ok(ncclCommDestroy(comm));
      expect(reduce() == ncclInvalidArgument, "a destroyed one");
    });
  });
}

TEST_CASE("nccl: one thread makes all ranks in a group") {
  const Settings settings(late(3));
  constexpr int world = 4;
  ncclUniqueId id;
  expect_ok(ncclGetUniqueId(&id));
  ncclComm_t comms[world] = {};
  std::vector<std::unique_ptr<Buffer<float>>> data;
  expect_ok(ncclGroupStart());
  for (int rank = 0; rank < world; ++rank) {
    expect_ok(cudaSetDevice(rank));
    expect_ok(ncclCommInitRank(&comms[rank], world, id, rank));
  }
  expect_ok(ncclGroupEnd());
  expect_ok(ncclGroupStart());
  for (int rank = 0; rank < world; ++rank) {
    expect_ok(cudaSetDevice(rank));
    data.push_back(std::make_unique<Buffer<float>>(std::vector<float>{float(rank)}));
    expect_ok(
        ncclAllReduce(*data[rank], *data[rank], 1, ncclFloat32, ncclSum, comms[rank], nullptr));
  }
  expect_ok(ncclGroupEnd());
  for (int rank = 0; rank < world; ++rank) {
    expect_ok(cudaSetDevice(rank));
    CHECK(data[rank]->read()[0] == 6);
    expect_ok(ncclCommDestroy(comms[rank]));
  }
  expect_ok(cudaSetDevice(0));
}

TEST_CASE("nccl: ranks that disagree about themselves") {
  run_ranks(Ranks::threads, 3, [](Common& common, int rank) {
    expect_ok(cudaSetDevice(rank));
    const ncclUniqueId id = unique_id(common, rank);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    await([&] { return common.step == rank; });
    // 0 of 3; 0 of 3 again; 2 of 4.
    const ncclResult_t result =
        ncclCommInitRankConfig(&comm, rank == 2 ? 4 : 3, id, rank == 2 ? 2 : 0, &config);
    expect(result == (rank == 0 ? ncclInProgress : ncclInvalidUsage), "rank {}: {}", rank,
           ncclGetErrorString(result));
    ++common.step;
    common.meeting.meet(3);
    if (comm) expect_ok(ncclCommAbort(comm));
  });
}

TEST_CASE("nccl: an id whose maker is gone") {
  const Board<Common> board;
  check_all_well(run_processes(2, [&](int rank) {
    if (rank == 0) {
      (void)unique_id(*board, 0);
      board->step = getpid();
      return;
    }
    await([&] { return board->step != 0; });
    const std::string descriptors = "/proc/" + std::to_string(board->step) + "/fd/0";
    await([&] { return access(descriptors.c_str(), F_OK) != 0; });
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRank(&comm, 2, board->id, 1);
    expect(result == ncclSystemError, "{}", ncclGetErrorString(result));
  }));
}

TEST_CASE("nccl: wrong calls") {
  int version = 0;
  ok(cudaSetDevice(0));
  expect_ok(ncclGetVersion(&version));
  CHECK(version == 22809);
  ncclUniqueId id, garbage{};
  expect_ok(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, 1, garbage, 0) == ncclInvalidArgument);
  CHECK(ncclCommInitRank(&comm, 1, id, 1) == ncclInvalidArgument);
  CHECK(ncclCommInitRank(&comm, 0, id, 0) == ncclInvalidArgument);
  CHECK(ncclCommInitRank(nullptr, 1, id, 0) == ncclInvalidArgument);
  ncclConfig_t config{};
  CHECK(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument);
  expect_ok(ncclCommInitRank(&comm, 1, id, 0));
  ncclComm_t again = nullptr;
  CHECK(ncclCommInitRank(&again, 1, id, 0) == ncclSystemError);  // all have joined: it is gone
  CHECK(again == nullptr);

  void* memory = nullptr;
  expect_ok(ncclMemAlloc(&memory, 400));
  auto* data = static_cast<float*>(memory);
  float pageable[4] = {};
  const auto reduce = [&](const float* from, std::size_t count, ncclDataType_t type = ncclFloat32,
                          ncclRedOp_t op = ncclSum, cudaStream_t stream = nullptr) {
    return ncclAllReduce(from, data, count, type, op, comm, stream);
  };
  expect_ok(reduce(data, 100));
  expect_ok(reduce(nullptr, 0));
  CHECK(reduce(data, 101) == ncclInvalidArgument);
  CHECK(reduce(data, ~std::size_t{0}) == ncclInvalidArgument);
  CHECK(reduce(pageable, 4) == ncclInvalidArgument);
  ok(cudaSetDevice(1));
  {
    const Device<float> of_another(4);
    CHECK(reduce(of_another, 4) == ncclInvalidArgument);
  }
  ok(cudaSetDevice(0));
  CHECK(reduce(data, 4, ncclFloat32, ncclMax) == ncclInvalidArgument);
  CHECK(reduce(data, 4, static_cast<ncclDataType_t>(10)) == ncclInvalidArgument);
  CHECK(ncclBroadcast(data, data, 1, ncclFloat32, 1, comm, nullptr) == ncclInvalidArgument);
  CHECK(ncclSend(data, 1, ncclFloat32, -1, comm, nullptr) == ncclInvalidArgument);
  CHECK(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, nullptr, nullptr) ==
        ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);

  // An error in a group is the group's, and nothing of it is done.
  expect_ok(ncclGroupStart());
  expect_ok(ncclSend(data, 1, ncclFloat32, 0, comm, nullptr));
  CHECK(reduce(pageable, 4) == ncclInvalidArgument);
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  ok(cudaStreamSynchronize(nullptr));
  {
    const Stream stream;
    ok(cudaSetDevice(1));
    const Stream elsewhere;
    ok(cudaSetDevice(0));
    CHECK(reduce(data, 4, ncclFloat32, ncclSum, elsewhere) == ncclInvalidUsage);
    expect_ok(ncclGroupStart());
    expect_ok(reduce(data, 4));
    CHECK(reduce(data, 4, ncclFloat32, ncclSum, stream) == ncclInvalidUsage);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
  }

  void* handle = nullptr;
  expect_ok(ncclCommRegister(comm, memory, 400, &handle));
  CHECK(ncclCommRegister(comm, memory, 401, &handle) == ncclInvalidArgument);
  CHECK(ncclCommRegister(comm, pageable, 4, &handle) == ncclInvalidArgument);
  expect_ok(ncclCommDeregister(comm, handle));
  CHECK(ncclCommDeregister(comm, handle) == ncclInvalidArgument);
  expect_ok(ncclMemFree(memory));
  CHECK(ncclMemFree(memory) == ncclUnhandledCudaError);
  CHECK(ncclCommSplit(comm, -2, 0, &again, nullptr) == ncclInvalidArgument);
  expect_ok(ncclCommFinalize(comm));
  CHECK(ncclCommFinalize(comm) == ncclInvalidArgument);
  expect_ok(ncclCommDestroy(comm));
  expect_ok(ncclCommDestroy(nullptr));
  CHECK(std::string(ncclGetErrorString(ncclRemoteError)) ==
        "remote process exited or there was a network error");
  (void)cudaGetLastError();
}

}  // namespace
}  // namespace simt::test
