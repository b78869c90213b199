// Every kernel of the library is on the list test/facts/kernels.txt, with a test that exists. That
// the test really launches the kernel is for facts_launches (launches_test.cpp).
#include "lockstep/tools/facts/kernel_list.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "facts/source_kernels.h"
#include "lockstep/tools/facts/text.h"
#include "support/capture_binding.h"

using namespace lockstep::facts;

namespace {

const std::filesystem::path source_root = LOCKSTEP_SOURCE_DIR;

}  // namespace

TEST_CASE("every kernel is on the list, under a name of its own") {
  std::map<std::string, std::string> listed;
  for (const ListedKernel& kernel : read_list(source_root)) {
    INFO(kernel.name, " is listed twice");
    CHECK(listed.emplace(kernel.name, kernel.source).second);
  }
  std::set<std::string> found;
  for (const SourceKernel& kernel : find_kernels(source_root)) {
    CAPTURE(kernel.name);
    CAPTURE(kernel.source);
    CHECK(kernel.name.ends_with("_kernel"));
    CHECK_MESSAGE(found.insert(kernel.name).second, "two kernels have this name");
    REQUIRE_MESSAGE(listed.count(kernel.name), "add it to test/facts/kernels.txt, with its test");
    CHECK(listed.at(kernel.name) == kernel.source);
  }
  for (const auto& [name, source] : listed) {
    CAPTURE_BINDING(name);  // of kernels.txt
    CAPTURE_BINDING(source);
    CHECK(found.count(name));
  }
}

TEST_CASE("every listed test exists") {
  for (const ListedKernel& kernel : read_list(source_root)) {
    CAPTURE(kernel.name);
    CAPTURE(kernel.test_case);
    const std::string text = read_file(source_root / kernel.test_file);
    const auto at = text.find('"' + kernel.test_case + '"');
    REQUIRE(at != std::string::npos);
    const std::string before = text.substr(0, at);
    CHECK(before.rfind("TEST_CASE") > before.rfind(')'));  // the last call that was begun
  }
}
