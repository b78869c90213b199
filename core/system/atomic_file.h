#pragma once
/// A file that is written whole or not at all.
///
///   AtomicFile file("model.safetensors");    // beside it model.safetensors.lockstep-PID-N.tmp
///   file.write(bytes, count);
///   file.commit();                           // is now model.safetensors
///
/// Until commit() an older file of that name is intact; without commit() the temporary file goes
/// away. What a killed process has left of this one file is removed by the next AtomicFile of the
/// same name: a writer holds a lock (flock(2)) on its temporary file, and the system drops the lock
/// with the process.
///
/// A link is followed, also one that leads to no file yet; what is there and is no regular file is
/// refused. The new file has the old one's mode, and its owner and group where the system lets us;
/// a file that is new has mode 0666 less the umask.
///
/// What fills chunks of 4 MiB goes past the page cache (O_DIRECT) where the file system lets it:
/// that takes a tenth of the processor's time. The last bytes, and small files, go through it.
///
/// All throw DataError `[save] ...` with the path and the system's reason. After that, commit()
/// throws, too.
/// Thread-safety: one thread uses an AtomicFile at a time. Several of the same name, in threads or
/// processes, do not disturb each other; the last commit() stands.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// What was written is on the disk when it returns. commit() does it, too.
  void sync();
  /// Durable when it returns: the file is synced before it gets its name, its folder after that.
  void commit();

 private:
  AtomicFile() = default;
  bool create(const std::string& temporary, unsigned mode);
  void take_over_owner_and_mode();
  void flush();
  void set_direct(bool direct);
  [[noreturn]] void give_up(std::string_view what);

  std::string path_, temporary_;
  int descriptor_ = -1;
  bool committed_ = false, failed_ = false;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> chunk_;  // what has not been written yet, `filled_` bytes
  std::size_t filled_ = 0;
  bool direct_ = false, may_be_direct_ = true;
};

/// The same for a text that is in memory. But where a pipe, a terminal or a device of characters is
/// there, the text goes into it: nothing is replaced. A pipe without a reader is an error.
void write_file(const std::string& path, std::string_view text);

}  // namespace lockstep
