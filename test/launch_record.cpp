// Which test case launches which kernels: with LOCKSTEP_LAUNCHES=FILE in the environment, a test
// program writes a line `test case <tab> kernel` for each pair. The test facts_launches reads them.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "lockstep/core/gpu/gpu.h"

namespace {

class LaunchRecord : public doctest::IReporter {
 public:
  explicit LaunchRecord(const doctest::ContextOptions&) {}

  void test_run_start() override {
    if (const char* path = std::getenv("LOCKSTEP_LAUNCHES")) file_.open(path);
  }
  void test_case_start(const doctest::TestCaseData& test) override {
    name_ = test.m_name;
    if (file_.is_open()) before_ = lockstep::gpu::kernel_launches();
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    if (!file_.is_open()) return;
    for (const auto& [kernel, launches] : lockstep::gpu::kernel_launches())
      if (launches > before_[kernel]) file_ << name_ << '\t' << kernel << '\n';
  }

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
  std::ofstream file_;
  std::string name_;
  std::map<std::string, std::uint64_t> before_;
};

}  // namespace

DOCTEST_REGISTER_LISTENER("launches", 1, LaunchRecord);
