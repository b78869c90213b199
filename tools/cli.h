#pragma once
/// What the programs share in reading their command lines and writing their summaries.

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/tools/device_options.h"
#include "lockstep/tools/option_values.h"
#include "lockstep/tools/precision.h"
#include "lockstep/version.h"

namespace lockstep::cli {

/// "64,128,10" as sizes of layers: at least two, each in 1..2^24. Throws UsageError naming the
/// text.
inline std::vector<std::int64_t> widths(std::string_view option, const std::string& text) {
  constexpr std::int64_t largest = 1 << 24;
  std::vector<std::int64_t> result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::int64_t width = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, width);
    check<UsageError>(
        error == std::errc() && stop == text.data() + end && width > 0 && width <= largest,
        "{} {}: '{}' is not a size in 1..{}", option, text, text.substr(begin, end - begin),
        largest);
    result.push_back(width);
    begin = end + 1;
  }
  check<UsageError>(result.size() >= 2, "{} {}: at least two sizes are needed", option, text);
  return result;
}

/// False after --help or --version, which it has answered. Throws UsageError, one line, for a
/// command line that the app does not take.
inline bool parse(CLI::App& app, int argc, const char* const* argv) {
  app.set_version_flag("--version", fmt::format("lockstep {}", version()), "Print the version");
  refuse_empty_values(app, argc, argv);
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::Success& answer) {
    app.exit(answer);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

inline void add_options(CLI::App& app, DeviceOptions& options) {
  app.add_option("--device", options.device,
                 "cpu, sim or cuda (cuda where a GPU is found, else cpu)")
      ->check(CLI::IsMember({"cpu", "sim", "cuda"}));
  app.add_option("--gemm", options.gemm, "Products on a GPU: handwritten, cublas or auto (auto)")
      ->check(CLI::IsMember({"handwritten", "cublas", "auto"}));
}

inline void add_options(CLI::App& app, Precision& precision) {
  app.add_option("--precision", precision.name,
                 "What factors of products are rounded to: f32, tf32, bf16 or f16 (f32)")
      ->check(CLI::IsMember({"f32", "tf32", "bf16", "f16"}));
}

/// True if `path` leads to where `descriptor` does.
inline bool same_file(const std::string& path, int descriptor) {
  struct stat there {
  }, open{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(descriptor, &open) == 0 &&
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

/// Numbers are written so that they read back as the same bits. A file is written whole or not at
/// all (core/system/atomic_file.h). /dev/stdout and /dev/stderr are not files of that name: the
/// text goes where stdout and stderr lead, and replaces nothing there.
inline void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(1) + '\n';
  if (same_file(path, STDOUT_FILENO))
    std::fwrite(text.data(), 1, text.size(), stdout);  // run_main sees to errors
  else if (same_file(path, STDERR_FILENO))
    check<DataError>(std::fwrite(text.data(), 1, text.size(), stderr) == text.size(),
                     "[save] cannot write '{}'", path);
  else
    write_file(path, text);
}

}  // namespace lockstep::cli
