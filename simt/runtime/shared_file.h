#pragma once
/// Memory that other processes of this machine can find: a file without a name in any folder, which
/// is gone when no process has it open any more, however its users end.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace simt::detail {

/// Where a shared file is: what a process tells another one, as plain bytes.
struct SharedName {
  std::uint64_t
      id;         ///< random, and the file's first bytes: descriptors and processes get new owners
  pid_t process;  ///< that made it, and has it open as `descriptor`
  int descriptor;
  bool operator==(const SharedName&) const = default;
};

/// The file's first page is its own; what is mapped comes after it. New memory is zero.
class SharedFile {
 public:
  static constexpr std::size_t page = 4096;
  static constexpr std::size_t whole_pages(std::size_t bytes) {
    return (bytes + page - 1) / page * page;
  }

  /// Throws std::bad_alloc if there is none to be had.
  static SharedFile create(std::size_t bytes);
  /// Nothing if it is gone, or another user's.
  static std::optional<SharedFile> open(const SharedName& name);

  SharedFile(SharedFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), id_(other.id_) {}
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();

  /// This process uses the memory as long as the object lives; and whether another process does.
  void hold() const;
  bool held_elsewhere() const;

  SharedName name() const;  ///< of a file that this process made
  /// Its memory, at `fixed` in place of what is there if that is not null. Throws std::bad_alloc.
  std::byte* map(std::size_t bytes, void* fixed = nullptr) const;

 private:
  SharedFile(int descriptor, std::uint64_t id) : descriptor_(descriptor), id_(id) {}
  int descriptor_;
  std::uint64_t id_;
};

}  // namespace simt::detail
