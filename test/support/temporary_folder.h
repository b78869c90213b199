#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep::test {

/// A folder that is deleted with everything in it at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX";
    check<Error>(mkdtemp(pattern.data()) != nullptr, "cannot make {}", pattern);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ / name; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::test
