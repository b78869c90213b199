/// Streams that write values in memory and wait for them: between streams, threads and processes,
/// and as nodes of graphs.

#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "simt/board.h"

namespace simt::test {
namespace {

void ok(CUresult result) { REQUIRE(result == CUDA_SUCCESS); }
using test::ok;

template <class T>
CUdeviceptr address(const T* data) {
  return reinterpret_cast<CUdeviceptr>(data);
}

CUstreamBatchMemOpParams write_32(const unsigned* at, unsigned value) {
  CUstreamBatchMemOpParams one{};
  one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  one.writeValue.address = address(at);
  one.writeValue.value = value;
  return one;
}

CUstreamBatchMemOpParams wait_32(const unsigned* at, unsigned value, unsigned flags) {
  CUstreamBatchMemOpParams one{};
  one.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  one.waitValue.address = address(at);
  one.waitValue.value = value;
  one.waitValue.flags = flags;
  return one;
}

/// Device memory of zeros.
std::vector<unsigned> zeros(std::size_t count) { return std::vector<unsigned>(count); }

TEST_CASE("a stream that waits for a value goes on when another stream has written it") {
  for (const Config& mode : every_mode(6)) {
    const Settings settings(mode);
    const Device<unsigned> flag(zeros(1)), data(zeros(4));
    Stream reader, writer;
    unsigned* pinned = nullptr;
    ok(cudaMallocHost(&pinned, 16));
    ok(cuStreamWaitValue32(reader, address(flag + 0), 1, CU_STREAM_WAIT_VALUE_GEQ));
    ok(cudaMemcpyAsync(pinned, data, 16, cudaMemcpyDeviceToHost, reader));
    CHECK(cudaStreamQuery(reader) == cudaErrorNotReady);  // the host was not held up
    CHECK(cudaGetLastError() == cudaErrorNotReady);       // which is the last error, until taken
    CHECK(cudaGetLastError() == cudaSuccess);
    ok(cudaMemsetAsync(data, 7, 16, writer));
    ok(cuStreamWriteValue32(writer, address(flag + 0), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    ok(cudaStreamSynchronize(reader));
    CHECK(pinned[3] == 0x07070707);
    ok(cudaFreeHost(pinned));
  }
}

TEST_CASE("the four ways to wait, of 32 and 64 bits") {
  struct Case {
    unsigned flags;
    std::uint64_t wanted, no, yes;
  };
  // GEQ is cyclic: after 2^32 - 1 comes 0.
  const Case cases[] = {{CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
                        {CU_STREAM_WAIT_VALUE_GEQ, ~0ull, ~0ull - 1, 3},
                        {CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
                        {CU_STREAM_WAIT_VALUE_AND, 6, 9, 4},
                        {CU_STREAM_WAIT_VALUE_NOR, 1, ~0ull - 1, 6}};
  for (const Case& one : cases) {
    const Device<std::uint64_t> word(std::vector<std::uint64_t>{one.no, one.no});
    Stream stream, other;
    ok(cuStreamWaitValue32(stream, address(word + 0), static_cast<unsigned>(one.wanted),
                           one.flags));
    ok(cuStreamWaitValue64(stream, address(word + 1), one.wanted, one.flags));
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    ok(cuStreamWriteValue32(other, address(word + 0), static_cast<unsigned>(one.yes), 0));
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    ok(cuStreamWriteValue64(other, address(word + 1), one.yes, 0));
    ok(cudaStreamQuery(stream));
  }
}

TEST_CASE("a poller sees it end, events and the default stream's waits are behind it") {
  for (const Config& mode : every_mode(6)) {
    const Settings settings(mode);
    unsigned* flag = nullptr;
    ok(cudaMallocHost(&flag, 4));
    *flag = 0;
    Stream waiter(cudaStreamDefault), third;
    Event passed;
    ok(cuStreamWaitValue32(waiter, address(flag), 1, CU_STREAM_WAIT_VALUE_EQ));
    ok(cudaEventRecord(passed, waiter));
    ok(cudaStreamWaitEvent(third, passed));
    for (int i = 0; i < 10; ++i) {
      CHECK(cudaEventQuery(passed) == cudaErrorNotReady);
      CHECK(cudaStreamQuery(third) == cudaErrorNotReady);
      CHECK(cudaStreamQuery(nullptr) == cudaErrorNotReady);
    }
    std::atomic_ref(*flag).store(1, std::memory_order_release);  // no call of the runtime
    cudaError_t error;
    while ((error = cudaEventQuery(passed)) == cudaErrorNotReady) {
    }
    ok(error);
    while ((error = cudaStreamQuery(third)) == cudaErrorNotReady) {
    }
    ok(error);
    ok(cudaStreamSynchronize(nullptr));
    ok(cudaFreeHost(flag));
  }
}

TEST_CASE("the host writes what a stream waits for, in pinned memory") {
  for (const Config& mode : every_mode(6)) {
    const Settings settings(mode);
    unsigned* flag = nullptr;
    ok(cudaMallocHost(&flag, 4));
    *flag = 0;
    Stream stream;
    ok(cuStreamWaitValue32(stream, address(flag), 9, CU_STREAM_WAIT_VALUE_EQ));
    std::thread host([flag] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::atomic_ref(*flag).store(9, std::memory_order_release);
    });
    ok(cudaStreamSynchronize(stream));
    CHECK(std::atomic_ref(*flag).load() == 9);
    host.join();
    ok(cudaFreeHost(flag));
  }
}

TEST_CASE("threads hand a token round a ring of streams, none holds up another") {
  for (const int world : {1, 2, 3, 4, 8})
    for (const Config& mode : {config(), late(1), late(2)}) {
      const Settings settings(mode);
      constexpr unsigned rounds = 5;
      const Device<unsigned> flags(zeros(world)), order(zeros(world * rounds + 1));
      std::atomic<int> wrong = 0;
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < world; ++rank)
        ranks.emplace_back([&, rank] {
          const auto expect = [&wrong](bool good) { wrong += !good; };
          cudaStream_t stream = nullptr;
          expect(cudaSetDevice(rank) == cudaSuccess);
          if (rank > 0) (void)cudaDeviceEnablePeerAccess(0, 0);  // it may be enabled already
          expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
          for (unsigned round = 0; round < rounds; ++round) {
            const unsigned turn = round * world + rank;
            if (turn > 0)  // the one before me has had its turn
              expect(cuStreamWaitValue32(stream, address(flags + (rank + world - 1) % world), turn,
                                         CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
            expect(cuStreamWriteValue32(stream, address(order + turn), turn + 1, 0) ==
                   CUDA_SUCCESS);
            expect(cuStreamWriteValue32(stream, address(flags + rank), turn + 1, 0) ==
                   CUDA_SUCCESS);
          }
          expect(cudaStreamSynchronize(stream) == cudaSuccess);
          expect(cudaStreamDestroy(stream) == cudaSuccess);
        });
      for (std::thread& rank : ranks) rank.join();
      CHECK(wrong == 0);
      const std::vector<unsigned> seen = order.read();
      for (unsigned turn = 0; turn < world * rounds; ++turn) CHECK(seen[turn] == turn + 1);
    }
}

TEST_CASE("a batch is done in its order") {
  for (const Config& mode : every_mode(6)) {
    const Settings settings(mode);
    const Device<unsigned> flags(zeros(4));
    Stream a, b;
    CUstreamBatchMemOpParams first[] = {
        write_32(flags, 1), wait_32(flags + 1, 2, CU_STREAM_WAIT_VALUE_EQ), write_32(flags + 2, 3)};
    CUstreamBatchMemOpParams second[] = {wait_32(flags, 1, CU_STREAM_WAIT_VALUE_EQ),
                                         write_32(flags + 1, 2)};
    ok(cuStreamBatchMemOp(a, 3, first, 0));
    ok(cuStreamBatchMemOp(b, 2, second, 0));
    ok(cudaStreamSynchronize(a));
    CHECK(flags.read() == std::vector<unsigned>{1, 2, 3, 0});
    ok(cuStreamBatchMemOp(a, 0, nullptr, 0));
  }
}

TEST_CASE("captured: a node that waits holds up what comes after it alone, at every launch") {
  for (const Config& mode : every_mode(6)) {
    const Settings settings(mode);
    const Device<unsigned> flag(zeros(1)), after(zeros(1)), beside(zeros(1));
    Stream stream, branch, other;
    Event fork, join;
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ok(cudaEventRecord(fork, stream));
    ok(cudaStreamWaitEvent(branch, fork));
    ok(cuStreamWaitValue32(stream, address(flag + 0), 1, CU_STREAM_WAIT_VALUE_EQ));
    ok(cudaMemsetAsync(after, 5, 4, stream));
    CUstreamBatchMemOpParams reset[] = {write_32(flag, 0)};
    ok(cuStreamBatchMemOp(stream, 1, reset, 0));
    ok(cudaMemsetAsync(beside, 6, 4, branch));
    ok(cudaEventRecord(join, branch));
    ok(cudaStreamWaitEvent(stream, join));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ok(cudaStreamEndCapture(stream, &graph));
    std::size_t count = 0;
    ok(cudaGraphGetNodes(graph, nullptr, &count));
    CHECK(count == 4);
    cudaGraphNode_t nodes[4];
    ok(cudaGraphGetNodes(graph, nodes, &count));
    cudaGraphNodeType type{};
    CHECK(cudaGraphNodeGetType(nodes[0], &type) == cudaErrorUnknown);  // as on an H200
    (void)cudaGetLastError();
    ok(cudaGraphInstantiate(&exec, graph));
    const auto value = [](const unsigned* data) {
      return std::atomic_ref(*const_cast<unsigned*>(data)).load();  // no stream is waited for
    };
    for (int launch_number = 0; launch_number < 3; ++launch_number) {
      ok(cudaMemset(after, 0, 4));
      ok(cudaMemset(beside, 0, 4));
      ok(cudaDeviceSynchronize());
      ok(cudaGraphLaunch(exec, stream));
      while (value(beside) == 0) CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
      CHECK(value(after) == 0);
      ok(cuStreamWriteValue32(other, address(flag + 0), 1, 0));
      ok(cudaStreamSynchronize(stream));
      CHECK(after.read()[0] == 0x05050505);
      CHECK(flag.read()[0] == 0);
    }
    ok(cudaGraphExecDestroy(exec));
    ok(cudaGraphDestroy(graph));
  }
}

TEST_CASE("memory of another device: only with peer access, and not of its pool") {
  constexpr int owner = 6, user = 7;
  ok(cudaSetDevice(owner));
  const Device<unsigned> word(zeros(1));
  unsigned* of_pool = nullptr;
  ok(cudaMallocAsync(&of_pool, 4, nullptr));
  ok(cudaMemsetAsync(of_pool, 0, 4, nullptr));
  ok(cudaSetDevice(user));
  {
    Stream stream;
    const Device<unsigned> copy(zeros(1));
    CHECK(cuStreamWriteValue32(stream, address(word + 0), 1, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamWaitValue32(stream, address(word + 0), 1, 0) == CUDA_ERROR_INVALID_VALUE);
    ok(cudaMemcpyAsync(copy, word, 4, cudaMemcpyDefault, stream));  // copies do without
    ok(cudaDeviceEnablePeerAccess(owner, 0));
    ok(cuStreamWriteValue32(stream, address(word + 0), 9, 0));
    CHECK(cuStreamWriteValue32(stream, address(of_pool), 1, 0) == CUDA_ERROR_INVALID_VALUE);
    ok(cudaStreamSynchronize(stream));
  }
  ok(cudaSetDevice(owner));
  CHECK(word.read()[0] == 9);
  ok(cudaFreeAsync(of_pool, nullptr));
  ok(cudaSetDevice(0));
}

TEST_CASE("wrong calls, and how the driver's functions are found") {
  const Device<unsigned> word(zeros(2));
  unsigned pageable = 0;
  Stream stream;
  CHECK(cuStreamWaitValue32(stream, address(&pageable), 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue32(stream, address(word + 0) + 2, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue64(stream, address(word + 1), 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue32(stream, address(word + 0), 1, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWriteValue32(stream, address(word + 0), 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWriteValue32(stream, 0, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CUstreamBatchMemOpParams nothing{};
  CHECK(cuStreamBatchMemOp(stream, 1, &nothing, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamBatchMemOp(stream, 256, &nothing, 0) == CUDA_ERROR_INVALID_VALUE);
  cudaStream_t destroyed = nullptr;
  ok(cudaStreamCreate(&destroyed));
  ok(cudaStreamDestroy(destroyed));
  CHECK(cuStreamWriteValue32(destroyed, address(word + 0), 1, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cudaGetLastError() == cudaSuccess);  // that is for the runtime's own
  ok(cudaStreamSynchronize(stream));

  void* function = nullptr;
  auto found = cudaDriverEntryPointSymbolNotFound;
  for (const char* name : {"cuStreamWaitValue32", "cuStreamWaitValue64", "cuStreamWriteValue64",
                           "cuStreamBatchMemOp", "cuStreamWriteValue32"}) {
    ok(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
    CHECK(found == cudaDriverEntryPointSuccess);
    CHECK(function != nullptr);
  }
  const auto write = reinterpret_cast<PFN_cuStreamWriteValue32_v11070>(function);
  ok(write(stream, address(word + 0), 17, 0));
  CHECK(word.read()[0] == 17);
}

}  // namespace
}  // namespace simt::test
