#pragma once
/// File descriptors that close themselves, and system calls that do not fail unseen.

#include <unistd.h>

#include <string_view>
#include <utility>

namespace lockstep::dist {

/// Owns a file descriptor: closes it when it goes. Movable, not copyable.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    other.close();
    return *this;
  }
  ~Descriptor() { close(); }

  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

/// What a system call returned. If that is negative, throws Error `[launch] cannot <what>:
/// <reason>`, the reason being errno's. (A function, since in `check(call() == 0, "{}", errno)`
/// errno may be read before the call.)
int checked(int result, std::string_view what);

/// Both ends are closed on exec.
struct Pipe {
  Descriptor read_end, write_end;
};
Pipe make_pipe();

}  // namespace lockstep::dist
