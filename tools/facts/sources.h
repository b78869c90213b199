#pragma once
/// What the sources say about kernels, and the list of kernels with their tests.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::facts {

/// A `__global__` function.
struct SourceKernel {
  std::string name;
  std::string source;   ///< relative to the root of the sources
  std::string comment;  ///< the // lines directly above it, in one line

  /// Whether the comment has this phrase, between other words: "mma" is not in "wgmma".
  bool claims(std::string_view phrase) const;
};

/// Those of one file's text.
std::vector<SourceKernel> kernels_in(std::string_view text, const std::string& source);

/// Whether a source, relative to the root, is in a folder whose kernels make up the library.
bool is_of_library(std::string_view source);

/// The kernels of those folders, by name.
std::vector<SourceKernel> find_kernels(const std::filesystem::path& root);

/// One line of test/facts/kernels.txt:
///   name | source | test file | test case
/// and `| hopper` behind a kernel of instructions that only those GPUs have.
struct ListedKernel {
  std::string name;
  std::string source;
  std::string test_file;
  std::string test_case;  ///< without the <type> of a TEST_CASE_TEMPLATE
  bool hopper;

  /// "kernels" of test/kernels/fold_test.cpp: the test program.
  std::string test_folder() const;
};

/// Empty lines and those that begin with # are comments. Throws DataError for one with other
/// fields.
std::vector<ListedKernel> parse_list(std::string_view text);
std::vector<ListedKernel> read_list(const std::filesystem::path& root);

}  // namespace lockstep::facts
