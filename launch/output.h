#pragma once
/// What ranks write, taken apart into lines: so that lines of several ranks do not mix, and so that
/// the last ones of a failed rank can be shown.

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

/// Cuts a stream of bytes into lines. A line longer than `longest_line` is cut there, so that a
/// program that never ends its line costs no memory.
class LineSplitter {
 public:
  static constexpr std::size_t longest_line = 8192;

  /// Calls `line(std::string_view)` for every line that `bytes` completes.
  template <class F>
  void feed(std::string_view bytes, F&& line) {
    for (char c : bytes) {
      if (c != '\n') partial_ += c;
      if (c == '\n' || partial_.size() == longest_line) flush(line, c == '\n');
    }
  }

  /// At the end: what came after the last newline, if anything did.
  template <class F>
  void finish(F&& line) {
    flush(line, false);
  }

 private:
  template <class F>
  void flush(F&& line, bool even_empty) {
    if (even_empty || !partial_.empty()) line(std::string_view(partial_));
    partial_.clear();
  }
  std::string partial_;
};

/// The last lines of a stream.
class Tail {
 public:
  explicit Tail(std::size_t lines) : lines_(lines) {}
  void add(std::string_view line) {
    if (kept_.size() == lines_) kept_.pop_front();
    if (lines_ > 0) kept_.emplace_back(line);
  }
  std::vector<std::string> lines() const { return {kept_.begin(), kept_.end()}; }

 private:
  std::size_t lines_;
  std::deque<std::string> kept_;
};

/// Writes all of `text`, waiting where the descriptor is non-blocking and full. What cannot be
/// written is dropped: there is nobody to tell.
void write_all(int descriptor, std::string_view text);

}  // namespace lockstep::dist
