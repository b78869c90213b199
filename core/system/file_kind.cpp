#include "lockstep/core/system/file_kind.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace lockstep {
namespace {

FileKind kind_of_mode(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return FileKind::file;
    case S_IFDIR: return FileKind::folder;
    case S_IFIFO: return FileKind::pipe;
    case S_IFSOCK: return FileKind::socket;
    case S_IFCHR: return FileKind::device;
    case S_IFBLK: return FileKind::disk;
    default: return FileKind::none;
  }
}

}  // namespace

FileKind kind_of_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? kind_of_mode(status.st_mode) : FileKind::none;
}

std::string_view name_of(FileKind kind) {
  switch (kind) {
    case FileKind::file: return "a file";
    case FileKind::folder: return "a folder";
    case FileKind::pipe: return "a pipe";
    case FileKind::socket: return "a socket";
    case FileKind::device: return "a device";
    case FileKind::disk: return "a block device";
    case FileKind::none: break;
  }
  return "nothing";
}

std::string why_unreadable(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::strerror(errno);
  const FileKind kind = kind_of_mode(status.st_mode);
  if (kind != FileKind::file) return fmt::format("it is {}, not a regular file", name_of(kind));
  // O_NONBLOCK: if it has become a pipe meanwhile, this does not wait.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return std::strerror(errno);
  ::close(descriptor);
  return "";
}

std::optional<std::string> follow_links(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int most_links = 40;  // as the kernel (path_resolution(7))
  fs::path target = path;
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, error)); ++links) {
    if (links == most_links) return std::nullopt;
    target = target.parent_path() / fs::read_symlink(target, error);  // or what is absolute
  }
  return target.string();
}

}  // namespace lockstep
