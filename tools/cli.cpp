#include "lockstep/tools/cli.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/dist/rendezvous/ranks.h"
#include "lockstep/tools/split.h"

namespace lockstep::cli {
namespace {

/// True if `path` leads to where `descriptor` does.
bool same_file(const std::string& path, int descriptor) {
  struct stat there {
  }, open{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(descriptor, &open) == 0 &&
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

}  // namespace

std::vector<std::int64_t> widths(std::string_view option, const std::string& text) {
  constexpr std::int64_t largest = 1 << 24;
  std::vector<std::int64_t> result;
  for (const std::string_view part : split(text, ',')) {
    const auto width = dist::parse_number<std::int64_t>(part);
    check<UsageError>(width && *width > 0 && *width <= largest,
                      "{} {}: '{}' is not a size in 1..{}", option, text, part, largest);
    result.push_back(*width);
  }
  check<UsageError>(result.size() >= 2, "{} {}: at least two sizes are needed", option, text);
  return result;
}

void add_options(App& app, DeviceOptions& options) {
  app.add_option("--device", options.device,
                 "cpu, sim or cuda (cuda where a GPU is found, else cpu)")
      .check(one_of({"cpu", "sim", "cuda"}));
  app.add_option("--gemm", options.gemm, "Products on a GPU: handwritten, cublas or auto (auto)")
      .check(one_of({"handwritten", "cublas", "auto"}));
}

void add_options(App& app, Precision& precision) {
  app.add_option("--precision", precision.name,
                 "What factors of products are rounded to: f32, tf32, bf16 or f16 (f32)")
      .check(one_of({"f32", "tf32", "bf16", "f16"}));
}

void check_writable(std::string_view option, const std::string& path) {
  if (path.empty()) return;
  const FileKind kind = kind_of_file(path);
  check<UsageError>(kind != FileKind::folder && kind != FileKind::socket && kind != FileKind::disk,
                    "{} '{}' is {}, which cannot be written", option, path, name_of(kind));
  check<UsageError>(kind == FileKind::none || ::access(path.c_str(), W_OK) == 0,
                    "{} '{}' is there and not writable", option, path);
  if (kind == FileKind::pipe || kind == FileKind::device) return;  // which is not replaced
  const std::optional<std::string> target = follow_links(path);
  check<UsageError>(target.has_value(), "{} '{}' is a link that leads back to itself", option,
                    path);
  const std::string folder = std::filesystem::absolute(*target).parent_path().string();
  check<UsageError>(kind_of_file(folder) == FileKind::folder, "{} '{}': there is no folder '{}'",
                    option, path, folder);
  // access() says yes to root for /proc, and for folders that a server keeps closed. A file without
  // a name leaves nothing behind if this process is killed; not every file system has them.
  int file = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string trial = (std::filesystem::path(folder) / ".lockstep-XXXXXX").string();
    file = ::mkstemp(trial.data());
    if (file >= 0) ::unlink(trial.c_str());
  }
  check<UsageError>(file >= 0, "{} '{}': the folder '{}' is not writable: {}", option, path, folder,
                    std::strerror(errno));
  ::close(file);
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
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
