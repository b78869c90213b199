#include "lockstep/core/system/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/core/system/progress.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t alignment = 4096;  // of memory and places in a file, for O_DIRECT
constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

// Renaming onto a link, a pipe or a device would replace it.
std::string target_of(const std::string& path) {
  const FileKind kind = kind_of_file(path);
  check<DataError>(kind == FileKind::none || kind == FileKind::file,
                   "[save] '{}' is {}, not a regular file", path, name_of(kind));
  const std::optional<std::string> target = follow_links(path);
  check<DataError>(target.has_value(), "[save] '{}' is a link that leads back to itself", path);
  return *target;
}

// ".lockstep-PID-N.tmp": a user's "model.2026.tmp" is none. Those of earlier versions, "PID.N.tmp",
// stay, because a user may have such names.
constexpr std::string_view mark = ".lockstep-", ending = ".tmp";

std::string temporary_suffix(unsigned number) {
  return fmt::format("{}{}-{}{}", mark, ::getpid(), number, ending);
}

bool is_temporary_suffix(std::string_view text) {
  if (!text.starts_with(mark) || !text.ends_with(ending)) return false;
  text.remove_prefix(mark.size());
  text.remove_suffix(ending.size());
  const auto is_number = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == part.npos;
  };
  const std::size_t dash = text.find('-');
  return dash != text.npos && is_number(text.substr(0, dash)) && is_number(text.substr(dash + 1));
}

// A writer that lives holds its lock. Where the file system has no locks, nothing is removed.
void remove_if_left(const fs::path& temporary) {
  const int descriptor = ::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(temporary.c_str());
  ::close(descriptor);
}

// What processes that are gone have left of this file.
void remove_leftovers(const fs::path& path) {
  const std::string prefix = path.filename().string();
  std::error_code error;
  fs::directory_iterator entry(path.has_parent_path() ? path.parent_path() : ".", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(prefix) && is_temporary_suffix(name.substr(prefix.size())) &&
        fs::is_regular_file(entry->symlink_status(ignored)))
      remove_if_left(entry->path());
  }
}

// False with errno set.
bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Without O_NONBLOCK, open() would wait until a process reads from the pipe.
void write_stream(const std::string& path, FileKind kind, std::string_view text) {
  const int stream = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  const bool well = stream >= 0 && ::fcntl(stream, F_SETFL, 0) == 0 && write_all(stream, text);
  const int reason = errno;
  if (stream >= 0) ::close(stream);
  const bool unread = kind == FileKind::pipe && reason == ENXIO;
  check<DataError>(well, "[save] cannot write '{}': {}", path,
                   unread ? "nobody reads from this pipe" : std::strerror(reason));
}

}  // namespace

// Through the other constructor, so that the destructor runs if this one throws.
AtomicFile::AtomicFile(const std::string& path) : AtomicFile() {
  path_ = target_of(path);
  remove_leftovers(path_);
  static std::atomic<unsigned> calls{0};
  struct stat old {};
  const unsigned mode = ::stat(path_.c_str(), &old) == 0 ? old.st_mode & 0777 : 0666;
  // A name that is taken is skipped: it may be a link that another user has planted.
  for (int attempt = 0; attempt < 1000; ++attempt)
    if (create(path_ + temporary_suffix(calls++), mode)) {
      take_over_owner_and_mode();
      return;
    }
  errno = EEXIST;
  give_up("create a temporary file for");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_ && !temporary_.empty()) ::unlink(temporary_.c_str());
}

// False if something of that name is there, or was taken for a leftover before we had the lock.
bool AtomicFile::create(const std::string& temporary, unsigned mode) {
  descriptor_ =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (descriptor_ < 0 && errno == EEXIST) return false;
  if (descriptor_ < 0) give_up("create");
  temporary_ = temporary;
  while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) return true;
  ::close(std::exchange(descriptor_, -1));
  temporary_.clear();
  return false;
}

// Where the group cannot be the old one's, it gets none of the old group's rights.
void AtomicFile::take_over_owner_and_mode() {
  struct stat old {
  }, mine{};
  if (::stat(path_.c_str(), &old) != 0 || ::fstat(descriptor_, &mine) != 0) return;
  mode_t mode = old.st_mode & 0777;
  const bool same = old.st_uid == mine.st_uid && old.st_gid == mine.st_gid;
  if (!same && ::fchown(descriptor_, old.st_uid, old.st_gid) != 0 &&
      ::fchown(descriptor_, static_cast<uid_t>(-1), old.st_gid) != 0)
    mode &= ~mode_t{070};
  if (::fchmod(descriptor_, mode) != 0) give_up("set the mode of");
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (!chunk_) chunk_.reset(static_cast<char*>(std::aligned_alloc(alignment, chunk_bytes)));
  check<MemoryError>(chunk_ != nullptr,
                     "[save] '{}': out of memory: no {} bytes for what is written", path_,
                     chunk_bytes);
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, chunk_bytes - filled_);
    std::memcpy(chunk_.get() + filled_, from, part);
    from += part;
    bytes -= part;
    filled_ += part;
    if (filled_ == chunk_bytes) flush();
  }
}

void AtomicFile::flush() {
  set_direct(filled_ == chunk_bytes);
  std::string_view rest(chunk_.get(), std::exchange(filled_, 0));
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    Progress::note();
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && (errno == EINVAL || errno == EOPNOTSUPP) && direct_) {
      may_be_direct_ = false;  // it wants another alignment, or knows no direct writes at all
      set_direct(false);
      if (direct_) give_up("write through the page cache");
    } else if (written < 0 && errno != EINTR) {
      give_up("write");
    }
  }
}

void AtomicFile::set_direct(bool direct) {
  direct = direct && may_be_direct_;
  if (direct == direct_) return;
  if (::fcntl(descriptor_, F_SETFL, direct ? O_DIRECT : 0) == 0)
    direct_ = direct;
  else
    may_be_direct_ = false;
}

void AtomicFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) give_up("sync");
}

void AtomicFile::commit() {
  check<DataError>(!failed_, "[save] '{}' is not complete: writing it has failed before", path_);
  sync();
  // Renamed before it is closed: that drops the lock, and a file without one looks like a leftover.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) give_up("rename");
  committed_ = true;
  if (::close(std::exchange(descriptor_, -1)) != 0) give_up("close");
  // The name is durable only once the folder is.
  const std::string folder = fs::path(path_).parent_path().string();
  const int directory =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) give_up("open the folder of");
  const int result = ::fsync(directory);
  const int error = errno;
  ::close(directory);
  errno = error;
  if (result != 0) give_up("sync the folder of");
}

void AtomicFile::give_up(std::string_view what) {
  const int error = errno;
  failed_ = true;
  fail<DataError>("[save] cannot {} '{}': {}", what, path_, std::strerror(error));
}

void write_file(const std::string& path, std::string_view text) {
  const FileKind kind = kind_of_file(path);
  if (kind == FileKind::pipe || kind == FileKind::device) return write_stream(path, kind, text);
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace lockstep
