/// The beginning and the end of a process that uses CUDA.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "simt/support.h"

namespace simt::test {
namespace {

TEST_CASE("fork: a child of a process that has used CUDA cannot use it") {
  const Settings settings(Config{});
  int count = 0;
  ok(cudaGetDeviceCount(&count));  // loads the driver
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = cudaGetDeviceCount(&count) == cudaErrorInitializationError &&
                         cudaSetDevice(0) == cudaErrorInitializationError &&
                         cudaGetLastError() == cudaErrorInitializationError;
    const std::string text = cudaGetErrorString(cudaErrorInitializationError);
    _exit(refused && text.find("forked from one that had used CUDA") != text.npos ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  ok(cudaGetDeviceCount(&count));  // the parent can
}

/// Before any static object of this program, so that it is called after all of them have ended.
[[gnu::constructor(101)]] void call_at_the_end() {
  if (std::getenv("CALL_AT_THE_END") == nullptr) return;
  std::atexit([] { std::printf("at the end: %s\n", cudaGetErrorName(cudaDeviceSynchronize())); });
}

TEST_CASE("planted: nothing" * doctest::skip()) { ok(cudaDeviceSynchronize()); }

TEST_CASE("exit: a static object from before CUDA's first use ends after CUDA") {
  const Ended child = run_child("planted: nothing", "CALL_AT_THE_END=1");
  INFO(child.output);
  CHECK(contains(child.output, "at the end: cudaErrorCudartUnloading"));
}

}  // namespace
}  // namespace simt::test
