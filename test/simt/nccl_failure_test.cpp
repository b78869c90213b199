/// Simulated NCCL: ranks that never come, are killed, fail, do something else, or abort.

#include <atomic>
#include <cstring>
#include <thread>

#include "simt/nccl_support.h"

namespace simt::test {
namespace {

using namespace std::chrono_literals;

/// The stream waits for something: not ready now, and not a little later.
void expect_blocked(cudaStream_t stream) {
  for (int i = 0; i < 20; ++i) {
    expect(cudaStreamQuery(stream) == cudaErrorNotReady, "it ended");
    std::this_thread::sleep_for(50us);
  }
}

ncclResult_t all_reduce(const Rank& me, const Buffer<float>& data, std::size_t count = 4) {
  return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, me.comm, me.stream());
}

TEST_CASE("nccl: a rank that never comes holds up the stream, not the host; an abort frees it") {
  for_two_kinds([](Ranks ranks) {
    run_ranks(ranks, 3, [](Common& common, int rank) {
      Rank me(common, rank, 3);
      const Buffer<float> data(4);
      if (rank != 1) {
        expect_ok(all_reduce(me, data));
        expect_ok(all_reduce(me, data));
        expect_blocked(me.stream());
        ncclResult_t error{};
        expect_ok(ncclCommGetAsyncError(me.comm, &error));
        expect_ok(error);  // NCCL has no clock
        // Another thread aborts while this one waits.
        std::thread other([comm = std::exchange(me.comm, nullptr)] {
          std::this_thread::sleep_for(1ms);
          (void)ncclCommAbort(comm);
        });
        const cudaError_t waited = cudaStreamSynchronize(me.stream());
        other.join();
        expect_ok(waited);
      }
      common.meeting.meet(3);
    });
  });
}

TEST_CASE("nccl: a killed rank holds up the others' streams until they abort") {
  for (const Config& mode : every_mode(1))
    for (const int victim : {0, 1, 2}) {
      const Settings settings(mode);
      const Board<Common> board;
      const std::vector<Outcome> outcomes = run_processes(3, [&](int rank) {
        Common& common = *board;
        Rank me(common, rank, 3);
        const Buffer<float> data(4);
        expect_ok(all_reduce(me, data));
        me.synchronize();
        common.meeting.meet(3);
        if (rank == victim) raise(SIGKILL);
        expect_ok(all_reduce(me, data));
        expect_blocked(me.stream());
        expect_ok(ncclCommAbort(std::exchange(me.comm, nullptr)));
        me.synchronize();
      });
      for (int rank = 0; rank < 3; ++rank) {
        INFO("rank ", rank, ": ", outcomes[rank].message);
        CHECK(outcomes[rank].signal == (rank == victim ? SIGKILL : 0));
        if (rank != victim) CHECK(outcomes[rank].well());
      }
    }
}

TEST_CASE("nccl: calls that do not fit each other never end") {
  using Calls = std::function<ncclResult_t(const Rank&, const Buffer<float>&)>;
  const std::pair<const char*, Calls> pairs[] = {
      {"sizes", [](const Rank& me,
                   const Buffer<float>& data) { return all_reduce(me, data, 3 + me.rank()); }},
      {"types",
       [](const Rank& me, const Buffer<float>& data) {
         return ncclAllReduce(data, data, 4, me.rank() ? ncclInt32 : ncclFloat32, ncclSum, me.comm,
                              me.stream());
       }},
      {"roots",
       [](const Rank& me, const Buffer<float>& data) {
         return ncclBroadcast(data, data, 4, ncclFloat32, me.rank(), me.comm, me.stream());
       }},
      {"operations",
       [](const Rank& me, const Buffer<float>& data) {
         return me.rank() ? all_reduce(me, data)
                          : ncclSend(data, 4, ncclFloat32, 1, me.comm, me.stream());
       }},
      {"sends and receives",
       [](const Rank& me, const Buffer<float>& data) {
         return me.rank() ? ncclSend(data, 3, ncclFloat32, 0, me.comm, me.stream())
                          : ncclRecv(data, 4, ncclFloat32, 1, me.comm, me.stream());
       }},
      {"sends on both ranks, no group", [](const Rank& me, const Buffer<float>& data) {
         const int peer = 1 - me.rank();
         const ncclResult_t sent = ncclSend(data, 4, ncclFloat32, peer, me.comm, me.stream());
         return sent ? sent : ncclRecv(data, 4, ncclFloat32, peer, me.comm, me.stream());
       }}};
  for (const auto& [what, calls] : pairs)
    for_two_kinds([&](Ranks ranks) {
      INFO(what);
      run_ranks(ranks, 2, [&](Common& common, int rank) {
        Rank me(common, rank, 2);
        const Buffer<float> data(4);
        expect_ok(calls(me, data));
        expect_blocked(me.stream());
        common.meeting.meet(2);
        expect_ok(ncclCommAbort(std::exchange(me.comm, nullptr)));
        me.synchronize();
      });
    });
}

TEST_CASE("nccl: a failure on order returns an error there and is an asynchronous one elsewhere") {
  for (const Ranks ranks : {Ranks::threads, Ranks::processes}) {
    Config mode = config();
    mode.nccl_fail_rank = 1;
    mode.nccl_fail_call = 3;
    const Settings settings(mode);
    run_ranks(ranks, 3, [](Common& common, int rank) {
      Rank me(common, rank, 3);
      const Buffer<float> data(4);
      expect_ok(all_reduce(me, data));
      expect_ok(all_reduce(me, data));
      common.meeting.meet(3);
      const ncclResult_t third = all_reduce(me, data);
      // The others may have heard of it already.
      expect(third == ncclSystemError ||
                 (rank != 1 && (third == ncclSuccess || third == ncclRemoteError)),
             "rank {}: {}", rank, ncclGetErrorString(third));
      ncclResult_t error{};
      await([&] {
        expect_ok(ncclCommGetAsyncError(me.comm, &error));
        return error != ncclSuccess;
      });
      expect(error == (rank == 1 ? ncclSystemError : ncclRemoteError), "rank {}: {}", rank,
             ncclGetErrorString(error));
      expect(all_reduce(me, data) == error, "an operation after that");
      common.meeting.meet(3);
      expect_ok(ncclCommAbort(std::exchange(me.comm, nullptr)));
      me.synchronize();
    });
  }
}

TEST_CASE("nccl: an abort before the others have come, with an operation pending, with a graph") {
  run_ranks(Ranks::threads, 2, [](Common& common, int rank) {
    if (rank == 0) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclUniqueId id;
      ncclComm_t comm = nullptr;
      expect_ok(ncclGetUniqueId(&id));
      expect(ncclCommInitRankConfig(&comm, 2, id, 0, &config) == ncclInProgress, "alone");
      expect_ok(ncclCommAbort(comm));
      expect(ncclCommAbort(comm) == ncclInvalidArgument, "twice");
    }
    Rank me(common, rank, 2, false);
    const Buffer<float> data(4);
    expect(all_reduce(me, data) == ncclInProgress, "the first operation");
    if (rank == 0) {
      expect_ok(ncclCommAbort(std::exchange(me.comm, nullptr)));
      return;
    }
    expect_ok(settle(me.comm));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    expect_ok(cudaStreamBeginCapture(me.stream(), cudaStreamCaptureModeThreadLocal));
    expect_ok(all_reduce(me, data));
    expect_ok(cudaStreamEndCapture(me.stream(), &graph));
    expect_ok(cudaGraphInstantiate(&exec, graph));
    expect_ok(cudaGraphLaunch(exec, me.stream()));
    expect_blocked(me.stream());
    std::atomic<bool> aborted = false;
    std::thread aborting([&, comm = std::exchange(me.comm, nullptr)] {
      expect_ok(ncclCommAbort(comm));
      aborted = true;
    });
    me.synchronize();
    expect_ok(cudaGraphLaunch(exec, me.stream()));  // does nothing
    me.synchronize();
    expect_ok(cudaGraphExecDestroy(exec));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    expect(!aborted, "the graph itself has the operation, too");
    expect_ok(cudaGraphDestroy(graph));
    aborting.join();
  });
}

}  // namespace
}  // namespace simt::test
