// What a test case leaves behind in its thread: no error of CUDA's that nobody has taken, which the
// next call that is fine would report, and the capture mode that it began with.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

class AfterEachCase : public doctest::IReporter {
 public:
  explicit AfterEachCase(const doctest::ContextOptions&) {}

  void test_case_start(const doctest::TestCaseData& test) override { name_ = test.m_name; }
  // doctest has counted the case's failures: another one ends the program.
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    if (const cudaError_t error = cudaPeekAtLastError(); error != cudaSuccess)
      stop(std::string("an error: ") + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    if (cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess &&
        mode != cudaStreamCaptureModeGlobal)
      stop("another capture mode");
  }

  void test_run_start() override {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  [[noreturn]] void stop(const std::string& what) const {
    std::fprintf(stderr, "ERROR: '%s' has left %s\n", name_.c_str(), what.c_str());
    std::_Exit(3);
  }

  std::string name_;
};

}  // namespace

DOCTEST_REGISTER_LISTENER("after each case", 1, AfterEachCase);
