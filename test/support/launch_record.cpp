// Which test case launches which kernels. If the environment has LOCKSTEP_LAUNCHES=FOLDER, each
// test case writes a file there: lines `test case <tab> kernel`. The test facts_launches reads the
// folders.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "lockstep/core/gpu/gpu.h"

namespace {

class LaunchRecord : public doctest::IReporter {
 public:
  explicit LaunchRecord(const doctest::ContextOptions&) {}

  void test_case_start(const doctest::TestCaseData& test) override {
    name_ = test.m_name;
    if (folder_) before_ = lockstep::gpu::kernel_launches();
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    if (!folder_) return;
    // Every case has a file of its own: ctest runs cases at the same time, and again.
    const std::string file = std::to_string(std::hash<std::string>{}(name_)) + ".txt";
    std::ofstream record(std::filesystem::path(folder_) / file);
    for (const auto& [kernel, launches] : lockstep::gpu::kernel_launches())
      if (launches > before_[kernel]) record << name_ << '\t' << kernel << '\n';
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
  const char* const folder_ = std::getenv("LOCKSTEP_LAUNCHES");
  std::string name_;
  std::map<std::string, std::uint64_t> before_;
};

}  // namespace

DOCTEST_REGISTER_LISTENER("launches", 1, LaunchRecord);
