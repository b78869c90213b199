#pragma once
/// What the simulator's tests share: launches, memory, settings for one test, and a run of this
/// very program as a child.

#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/simt/simt.h"

namespace simt::test {

/// These tests choose orders and delays themselves: what the environment asks for is for others.
/// Some have ranks that are threads, and after that ranks that are processes. Many plant a race.
inline const bool starts_from_defaults = (configure({.races = false, .allow_fork = true}), true);

/// The call must succeed.
inline void ok(cudaError_t error) {
  INFO(std::string(cudaGetErrorName(error)), ": ", std::string(cudaGetErrorString(error)));
  REQUIRE(error == cudaSuccess);
}

struct Shape {
  dim3 grid = 1, block = 1;
  std::size_t shared_bytes = 0;
  dim3 cluster = 1;
};

template <class... Formal, class... Actual>
cudaError_t try_launch(void (*kernel)(Formal...), const Shape& shape, cudaStream_t stream,
                       const Actual&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster.x, shape.cluster.y, shape.cluster.z};
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Formal, class... Actual>
void launch(void (*kernel)(Formal...), const Shape& shape, cudaStream_t stream,
            const Actual&... arguments) {
  ok(try_launch(kernel, shape, stream, arguments...));
}

/// Device memory of `count` values.
template <class T>
class Device {
 public:
  explicit Device(std::size_t count) : count_(count) { ok(cudaMalloc(&data_, count * sizeof(T))); }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    ok(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Device() { (void)cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  operator T*() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    ok(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    ok(cudaStreamCreateWithFlags(&handle_, flags));
  }
  ~Stream() { (void)cudaStreamDestroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    ok(cudaEventCreateWithFlags(&handle_, flags));
  }
  ~Event() { (void)cudaEventDestroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return handle_; }

 private:
  cudaEvent_t handle_ = nullptr;
};

/// A graph and its executable form.
class Graph {
 public:
  explicit Graph(cudaGraph_t graph, unsigned long long flags = 0) : graph_(graph) {
    ok(cudaGraphInstantiate(&exec_, graph, flags));
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  cudaError_t launch(cudaStream_t stream) const { return cudaGraphLaunch(exec_, stream); }
  std::size_t size() const {
    std::size_t count = 0;
    ok(cudaGraphGetNodes(graph_, nullptr, &count));
    return count;
  }

 private:
  cudaGraph_t graph_;
  cudaGraphExec_t exec_ = nullptr;
};

/// What `body` enqueues in the stream.
template <class Body>
cudaGraph_t capture(cudaStream_t stream, Body body) {
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  body();
  cudaGraph_t graph = nullptr;
  ok(cudaStreamEndCapture(stream, &graph));
  return graph;
}

/// The simulator's settings while it lives. Errors, sticky ones too, end with it.
class Settings {
 public:
  explicit Settings(const Config& config) : before_(simt::config()) { configure(config); }
  ~Settings() {
    reset();
    configure(before_);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

 private:
  Config before_;
};

inline Config in_order(Order order, std::uint64_t seed = 0) {
  Config config = simt::config();
  config.order = order;
  config.order_seed = seed;
  return config;
}

inline Config late(std::uint64_t seed) {
  Config config = simt::config();
  config.streams = Streams::late;
  config.stream_seed = seed;
  return config;
}

/// Ascending, descending, and a few random ones.
inline std::vector<Config> every_order() {
  std::vector<Config> configs{in_order(Order::ascending), in_order(Order::descending)};
  for (std::uint64_t seed = 0; seed < 3; ++seed) configs.push_back(in_order(Order::random, seed));
  return configs;
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool with_address_sanitizer = true;
#else
constexpr bool with_address_sanitizer = false;
#endif

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Launches a kernel that fails; its report. The error is sticky until the simulator is reset.
template <class... Formal, class... Actual>
std::string report_of(void (*kernel)(Formal...), const Shape& shape, const Actual&... arguments) {
  CHECK(try_launch(kernel, shape, nullptr, arguments...) == cudaErrorLaunchFailure);
  const std::string report = cudaGetErrorString(cudaErrorLaunchFailure);
  int* data = nullptr;
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  CHECK(cudaMalloc(&data, 4) == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  ok(cudaSetDevice(1));  // another device's context is sound
  ok(cudaDeviceSynchronize());
  ok(cudaSetDevice(0));
  reset();
  ok(cudaDeviceSynchronize());
  CHECK(cudaGetLastError() == cudaSuccess);
  return report;
}

/// Launches the kernel in each of five orders. Either every order reports something, or none does.
/// Returns the first order's report.
template <class... Formal, class... Actual>
std::string found_in(void (*kernel)(Formal...), const Shape& shape, const Actual&... arguments) {
  std::string found;
  bool first = true;
  for (Config config : every_order()) {
    config.races = true;
    const Settings settings(config);
    const bool failed = try_launch(kernel, shape, nullptr, arguments...) != cudaSuccess;
    const std::string report = failed ? cudaGetErrorString(cudaErrorLaunchFailure) : "";
    reset();
    if (first) found = report;
    first = false;
    CHECK(report.empty() == found.empty());
  }
  return found;
}

struct Ended {
  bool succeeded;
  std::string output;
};

/// Runs one test case of this program, which may be a skipped one, as a child process.
inline Ended run_child(const std::string& test_case, const std::string& environment = "") {
  char program[4096] = {};
  REQUIRE(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
  const std::string command =
      environment + " timeout 60 '" + program + "' --no-skip --test-case='" + test_case + "' 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ended ended{};
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    ended.output.append(buffer, n);
  ended.succeeded = pclose(pipe) == 0;
  return ended;
}

}  // namespace simt::test
