/// Memory of one process that others use: CUDA IPC, with processes.

#include <cuda.h>

#include <cstring>

#include "simt/board.h"

namespace simt::test {
namespace {

constexpr int most = 8;

struct Handles {
  cudaIpcMemHandle_t of[most];
  Meeting meeting;
  std::atomic<int> step = 0;
  pid_t killed = 0;
};

__global__ void add_kernel(int* to, const int* from, int count) {
  for (int i = 0; i < count; ++i) to[i] += from[i];
}

std::vector<int> read(const int* data, std::size_t count) {
  std::vector<int> values(count);
  expect_ok(cudaMemcpy(values.data(), data, count * 4, cudaMemcpyDeviceToHost));
  return values;
}

int* allocate(const std::vector<int>& values) {
  int* data = nullptr;
  expect_ok(cudaMalloc(&data, values.size() * 4));
  expect_ok(cudaMemcpy(data, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  return data;
}

int* open_handle(const cudaIpcMemHandle_t& handle) {
  void* data = nullptr;
  expect_ok(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess));
  return static_cast<int*>(data);
}

cudaError_t try_open(const cudaIpcMemHandle_t& handle, unsigned flags = 1) {
  void* data = &data;
  const cudaError_t error = cudaIpcOpenMemHandle(&data, handle, flags);
  expect(error == cudaSuccess || data == nullptr || flags != 1, "a pointer with an error");
  return error;
}

void set(cudaStream_t stream, int* flag) {
  const auto at = reinterpret_cast<CUdeviceptr>(flag);
  expect(cuStreamWriteValue32(stream, at, 1, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS,
         "a write of a flag");
}

void wait(cudaStream_t stream, int* flag) {
  const auto at = reinterpret_cast<CUdeviceptr>(flag);
  expect(cuStreamWaitValue32(stream, at, 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_ERROR_INVALID_VALUE,
         "a wait for another process without a flush");
  constexpr unsigned flags = CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_FLUSH;
  expect(cuStreamWaitValue32(stream, at, 1, flags) == CUDA_SUCCESS, "a wait for a flag");
}

/// Each rank adds its left neighbour's numbers to its own. All of it is ordered by flags behind the
/// numbers: "your right neighbour has read you", and "your left neighbour has ended".
void add_left(Handles& handles, int rank, int world, std::size_t count) {
  expect_ok(cudaSetDevice(rank % 2));  // several ranks on one GPU are fine
  const int left = (rank + world - 1) % world, right = (rank + 1) % world;
  std::vector<int> start(count + 2);
  for (std::size_t i = 0; i < count; ++i) start[i] = static_cast<int>(i) * 10 + rank + 1;
  int* mine = allocate(start);
  expect_ok(cudaIpcGetMemHandle(&handles.of[rank], mine));
  expect(read(mine, count + 2) == start, "sharing changed the memory");
  handles.meeting.meet(world);
  int* of_left = world == 1 ? mine : open_handle(handles.of[left]);
  int* of_right = world == 1 ? mine : open_handle(handles.of[right]);

  cudaStream_t stream = nullptr;
  expect_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int* sum = allocate(start);
  expect_ok(try_launch(add_kernel, {}, stream, sum, of_left, static_cast<int>(count)));
  set(stream, of_left + count);
  wait(stream, mine + count);
  expect_ok(cudaMemcpyAsync(mine, sum, count * 4, cudaMemcpyDeviceToDevice, stream));
  set(stream, of_right + count + 1);
  wait(stream, mine + count + 1);
  expect_ok(cudaStreamSynchronize(stream));
  const std::vector<int> end = read(of_left, count);  // as it has ended
  const int far_left = (left + world - 1) % world;
  for (std::size_t i = 0; i < count; ++i)
    expect(end[i] == static_cast<int>(i) * 20 + left + far_left + 2, "rank {}, element {}: {}",
           rank, i, end[i]);
  if (world > 1) {  // of two, these are the same memory, opened twice
    expect_ok(cudaIpcCloseMemHandle(of_left));
    expect_ok(cudaIpcCloseMemHandle(of_right));
  }
  handles.meeting.meet(world);
  expect_ok(cudaFree(mine));
  expect_ok(cudaFree(sum));
}

TEST_CASE("ipc: neighbours read each other's memory, ordered by flags in it") {
  for (const int world : {1, 2, 3, 4, 8})
    for (const Config& mode : every_mode(2)) {
      const Settings settings(mode);
      for (const std::size_t count : {1, 3000}) {  // part of a page, and several
        const Board<Handles> handles;
        check_all_well(
            run_processes(world, [&](int rank) { add_left(*handles, rank, world, count); }));
      }
    }
}

TEST_CASE("ipc: a wait for another process is no deadlock, however long that takes") {
  Config impatient = config();
  impatient.patience = std::chrono::milliseconds(50);
  impatient.cautious = true;
  const Board<Handles> handles;
  check_all_well(run_processes(2, [&](int rank) {
    const Settings settings(impatient);
    cudaStream_t stream = nullptr;
    expect_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int* mine = allocate({0});
    expect_ok(cudaIpcGetMemHandle(&handles->of[rank], mine));
    handles->meeting.meet(2);
    int* theirs = open_handle(handles->of[1 - rank]);
    handles->meeting.meet(2);
    if (rank == 0) {
      wait(stream, mine);
      int* more = allocate({1});  // waits for the stream
      expect_ok(cudaFree(more));
    } else {
      usleep(300'000);
      set(stream, theirs);
    }
    expect_ok(cudaStreamSynchronize(stream));
    expect_ok(cudaIpcCloseMemHandle(theirs));
    handles->meeting.meet(2);
    expect_ok(cudaFree(mine));
  }));
}

TEST_CASE("ipc: what can be exported, and what a handle is good for") {
  const Board<Handles> handles;
  check_all_well(run_processes(2, [&](int rank) {
    cudaIpcMemHandle_t handle{};
    if (rank == 0) {
      int* data = allocate({1, 2, 3});
      int *pooled = nullptr, *pinned = nullptr, pageable = 0;
      expect_ok(cudaMallocAsync(&pooled, 16, nullptr));
      expect_ok(cudaMallocHost(&pinned, 16));
      expect(cudaIpcGetMemHandle(&handle, pooled) == cudaErrorInvalidValue, "of a pool");
      expect(cudaIpcGetMemHandle(&handle, pinned) == cudaErrorInvalidValue, "pinned");
      expect(cudaIpcGetMemHandle(&handle, &pageable) == cudaErrorInvalidValue, "of the host");
      expect(cudaIpcGetMemHandle(&handle, data + 1) == cudaErrorInvalidValue, "not its beginning");
      expect(cudaIpcGetMemHandle(nullptr, data) == cudaErrorInvalidValue, "no handle");
      expect_ok(cudaIpcGetMemHandle(&handles->of[0], data));
      expect_ok(cudaIpcGetMemHandle(&handle, data));
      expect(std::memcmp(&handle, &handles->of[0], sizeof handle) == 0, "another handle");
      expect(try_open(handle) == cudaErrorDeviceUninitialized, "opened by its own process");
      handles->step = 1;
      await([&] { return handles->step == 2; });
      expect(read(data, 3) == std::vector<int>{1, 9, 3}, "the other one's copy is not here");
      handles->step = 3;
      await([&] { return handles->step == 4; });
      expect_ok(cudaFree(data));
      int* next = allocate({7});  // may be where the other was, with its descriptor
      expect_ok(cudaIpcGetMemHandle(&handles->of[1], next));
      handles->step = 5;
      await([&] { return handles->step == 6; });
      return;
    }
    await([&] { return handles->step == 1; });
    expect(try_open(handle) == cudaErrorInvalidResourceHandle, "a handle of zeros");
    expect(try_open(handles->of[0], 0) == cudaErrorInvalidValue, "wrong flags");
    int* data = open_handle(handles->of[0]);
    expect(open_handle(handles->of[0]) == data, "opened twice, at two addresses");
    cudaPointerAttributes attributes{};
    expect_ok(cudaPointerGetAttributes(&attributes, data + 2));
    expect(attributes.type == cudaMemoryTypeDevice, "not device memory");
    expect(cudaMemset(data, 0, 13) == cudaErrorInvalidValue, "more than there is");
    expect(cudaFree(data) == cudaErrorInvalidValue, "freed by one that opened it");
    expect(cudaIpcGetMemHandle(&handle, data) == cudaErrorInvalidValue, "passed on");
    const int nine = 9;
    expect_ok(cudaMemcpy(data + 1, &nine, 4, cudaMemcpyHostToDevice));
    handles->step = 2;
    await([&] { return handles->step == 3; });
    expect(try_open(handles->of[0]) == cudaSuccess, "still open here");
    for (int i = 0; i < 3; ++i) expect_ok(cudaIpcCloseMemHandle(data));
    expect(cudaIpcCloseMemHandle(data) == cudaErrorInvalidValue, "closed once too often");
    expect(cudaMemset(data, 0, 4) == cudaErrorInvalidValue, "used after that");
    handles->step = 4;
    await([&] { return handles->step == 5; });
    expect(try_open(handles->of[0]) == cudaErrorMapBufferObjectFailed, "freed by its owner");
    expect(read(open_handle(handles->of[1]), 1)[0] == 7, "the next one");
    handles->step = 6;
  }));
}

TEST_CASE("ipc: memory that another process has open is not freed") {
  const Board<Handles> handles;
  check_all_well(run_processes(2, [&](int rank) {
    if (rank == 1) {
      await([&] { return handles->step == 1; });
      open_handle(handles->of[0]);
      handles->step = 2;
      await([&] { return handles->step == 3; });
      return;
    }
    int* data = allocate({1, 2, 3});
    expect_ok(cudaIpcGetMemHandle(&handles->of[0], data));
    handles->step = 1;
    await([&] { return handles->step == 2; });
    const cudaError_t error = cudaFree(data);
    const std::string report = cudaGetErrorString(cudaErrorLaunchFailure);
    handles->step = 3;
    expect(error != cudaSuccess || cudaDeviceSynchronize() == cudaErrorLaunchFailure, "freed");
    expect(contains(report, "cudaFree of memory that another process has open"), "no report");
  }));
}

TEST_CASE("ipc: memory of a process that was killed lives as long as it is open, and no longer") {
  const Board<Handles> handles;
  const std::vector<Outcome> outcomes = run_processes(2, [&](int rank) {
    if (rank == 0) {
      expect_ok(cudaIpcGetMemHandle(&handles->of[0], allocate({5, 6})));
      handles->killed = getpid();
      handles->step = 1;
      await([&] { return handles->step == 2; });
      raise(SIGKILL);
    }
    await([&] { return handles->step == 1; });
    int* data = open_handle(handles->of[0]);
    handles->step = 2;
    // A killed child has no descriptors any more, also while nobody has waited for it.
    const std::string descriptors = "/proc/" + std::to_string(handles->killed) + "/fd/0";
    await([&] { return access(descriptors.c_str(), F_OK) != 0; });
    expect(read(data, 2) == std::vector<int>{5, 6}, "gone with its process");
    expect_ok(cudaIpcCloseMemHandle(data));
    await([&] { return try_open(handles->of[0]) == cudaErrorMapBufferObjectFailed; });
  });
  CHECK(outcomes[0].signal == SIGKILL);
  CHECK(outcomes[1].well());
}

TEST_CASE("planted: beyond the end of shared memory" * doctest::skip()) {
  int* data = nullptr;
  ok(cudaMalloc(&data, 40));
  cudaIpcMemHandle_t handle;
  ok(cudaIpcGetMemHandle(&handle, data));
  (void)try_launch(add_kernel, {}, nullptr, data, data, 11);
}

TEST_CASE("AddressSanitizer guards the end of shared memory") {
  if (!with_address_sanitizer) return;
  const Ended child = run_child("planted: beyond the end of shared memory");
  INFO(child.output);
  CHECK(!child.succeeded);
  CHECK(contains(child.output, "use-after-poison"));
}

}  // namespace
}  // namespace simt::test
