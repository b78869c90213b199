#pragma once
/// The files of the source tree, for checks of its structure.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "support/text.h"

namespace lockstep::test {

/// Relative to the root, as in "core/tensor.h". Without build folders, hidden ones and caches.
inline const std::vector<std::string>& files_of_tree() {
  static const std::vector<std::string> files = [] {
    namespace fs = std::filesystem;
    std::vector<std::string> found;
    for (fs::recursive_directory_iterator at(LOCKSTEP_SOURCE_DIR), end; at != end; ++at) {
      const std::string path = at->path().lexically_relative(LOCKSTEP_SOURCE_DIR);
      const std::string name = at->path().filename();
      if (name.starts_with('.') || name == "__pycache__" || path == "build")
        at.disable_recursion_pending();
      else if (at->is_regular_file())
        found.push_back(path);
    }
    return found;
  }();
  return files;
}

/// Whether it is C++ or CUDA, of ours or of tests.
inline bool is_source(std::string_view path) {
  for (const std::string_view ending : {".h", ".cpp", ".cuh", ".cu"})
    if (path.ends_with(ending)) return true;
  return false;
}

inline std::vector<std::string> lines_of_file(const std::string& path) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/" + path);
  return lines_of({std::istreambuf_iterator<char>(file), {}});
}

}  // namespace lockstep::test
