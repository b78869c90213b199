#pragma once
/// What the tests of simulated NCCL share: ranks as threads or processes, and a communicator for
/// them.

#include <nccl.h>

#include "simt/board.h"

namespace simt::test {

inline void expect_ok(ncclResult_t result) {
  expect(result == ncclSuccess, "{}: {}", ncclGetErrorString(result), ncclGetLastError(nullptr));
}

/// What ranks tell each other outside of NCCL.
struct Common {
  ncclUniqueId id;
  std::atomic<bool> has_id = false;
  Meeting meeting;
  std::atomic<int> step = 0;
};

enum class Ranks { threads, processes };

/// Runs body(common, rank) for each rank.
template <class F>
void run_ranks(Ranks ranks, int world, F body) {
  const Board<Common> common;
  const auto run = [&](int rank) { body(*common, rank); };
  if (ranks == Ranks::threads)
    CHECK_NOTHROW(run_threads(world, run));
  else
    check_all_well(run_processes(world, run));
}

/// Calls body(ranks, world) for threads and processes, eager and late, and these numbers of them.
template <class F>
void for_every_world(F body) {
  for (const Ranks ranks : {Ranks::threads, Ranks::processes})
    for (const Config& mode : every_mode(1))
      for (const int world : {1, 2, 3, 4, 8}) {
        CAPTURE(world);
        const Settings settings(mode);
        body(ranks, world);
      }
}

/// Calls body(ranks) for threads and processes, eager and late.
template <class F>
void for_two_kinds(F body) {
  for (const Ranks ranks : {Ranks::threads, Ranks::processes})
    for (const Config& mode : every_mode(1)) {
      const Settings settings(mode);
      body(ranks);
    }
}

/// Polls until nothing is in progress; what it ended with.
inline ncclResult_t settle(ncclComm_t comm, ncclResult_t result = ncclInProgress) {
  while (result == ncclInProgress) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (const ncclResult_t error = ncclCommGetAsyncError(comm, &result)) return error;
  }
  return result;
}

/// The first rank makes the id.
inline const ncclUniqueId& unique_id(Common& common, int rank) {
  if (rank == 0) {
    expect_ok(ncclGetUniqueId(&common.id));
    common.has_id = true;
  }
  await([&] { return common.has_id.load(); });
  return common.id;
}

/// Device `rank`, a stream of it, and a communicator that is aborted at the end if it is still
/// there.
class Rank {
 public:
  Rank(Common& common, int rank, int world, bool blocking = true) : rank_(rank), world_(world) {
    expect_ok(cudaSetDevice(rank));
    expect_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    const ncclResult_t result =
        ncclCommInitRankConfig(&comm, world, unique_id(common, rank), rank, &config);
    expect_ok(blocking ? result : settle(comm, result));
  }
  ~Rank() {
    if (comm) (void)ncclCommAbort(comm);
    (void)cudaStreamDestroy(stream_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  cudaStream_t stream() const { return stream_; }
  void synchronize() const { expect_ok(cudaStreamSynchronize(stream_)); }
  void destroy() { expect_ok(ncclCommDestroy(std::exchange(comm, nullptr))); }
  int rank() const { return rank_; }
  int world() const { return world_; }

  ncclComm_t comm = nullptr;

 private:
  int rank_, world_;
  cudaStream_t stream_ = nullptr;
};

/// Memory of the current device.
template <class T>
class Buffer {
 public:
  explicit Buffer(const std::vector<T>& values) : count_(values.size()) {
    expect_ok(cudaMalloc(&data_, count_ * sizeof(T)));
    expect_ok(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  explicit Buffer(std::size_t count) : Buffer(std::vector<T>(count)) {}
  ~Buffer() { (void)cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator T*() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    expect_ok(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

}  // namespace simt::test
