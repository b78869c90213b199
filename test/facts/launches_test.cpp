// facts_launches: every kernel on the list was launched by its test. Where there is a simulator,
// ctest runs this after the tests of kernels. LOCKSTEP_LAUNCH_RECORDS names the folder of their
// records (test/support/launch_record.cpp), which has a folder for each run: kernels, cuda,
// cuda_hopper.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "lockstep/tools/facts/kernel_list.h"
#include "lockstep/tools/facts/text.h"

using namespace lockstep::facts;

namespace {

using Record = std::map<std::string, std::set<std::string>>;  // test cases by kernel

Record read_records(const std::filesystem::path& folder) {
  Record record;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string text = read_file(file.path());
    for (const std::string_view line : lines_of(text)) {
      const auto tab = line.find('\t');
      // Without the type of a TEST_CASE_TEMPLATE, which comes last.
      std::string_view test_case = line.substr(0, tab);
      if (test_case.ends_with('>')) test_case = test_case.substr(0, test_case.rfind('<'));
      record[std::string(line.substr(tab + 1))].emplace(test_case);
    }
  }
  return record;
}

}  // namespace

TEST_CASE("launches: every listed kernel, by its test" * doctest::skip()) {
  const char* folder = std::getenv("LOCKSTEP_LAUNCH_RECORDS");
  REQUIRE_MESSAGE(folder, "LOCKSTEP_LAUNCH_RECORDS is not set: run this through ctest");
  std::map<std::string, Record> records;  // by ctest's name of the run
  for (const ListedKernel& kernel : read_list(LOCKSTEP_SOURCE_DIR)) {
    const std::string program = std::filesystem::path(kernel.test_file).parent_path().filename();
    const std::string run = program + (kernel.hopper ? "_hopper" : "");
    if (!records.count(run)) records[run] = read_records(std::filesystem::path(folder) / run);
    CAPTURE(kernel.name);
    CAPTURE(kernel.test_file);
    REQUIRE_MESSAGE(records[run].count(kernel.name), "its test program never launched it");
    std::string others;
    for (const std::string& test_case : records[run][kernel.name]) others += "\n  " + test_case;
    CHECK_MESSAGE(records[run][kernel.name].count(kernel.test_case), "not launched by '",
                  kernel.test_case, "', but by:", others);
  }
}
