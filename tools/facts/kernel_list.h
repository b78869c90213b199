#pragma once
/// The list of kernels with their tests.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::facts {

/// One line of test/facts/kernels.txt:
///   name | source | test file | test case
/// and `| hopper` behind a kernel of instructions that only those GPUs have.
struct ListedKernel {
  std::string name;
  std::string source;
  std::string test_file;
  std::string test_case;  ///< without the <type> of a TEST_CASE_TEMPLATE
  bool hopper;
};

/// Empty lines and those that begin with # are comments. Throws DataError for one with other
/// fields.
std::vector<ListedKernel> parse_list(std::string_view text);
std::vector<ListedKernel> read_list(const std::filesystem::path& root);

}  // namespace lockstep::facts
