#pragma once
/// A file read from its beginning to its end, unpacked on the way if it is gzipped (RFC 1952; known
/// by its first two bytes, whatever its name). The reader says how many bytes it expects, and this
/// class sees to it that not one is missing.

#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {

class Input {
 public:
  /// Throws DataError, as every function here, if the file cannot be opened and read.
  explicit Input(const std::filesystem::path& path);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  const std::string& name() const { return name_; }

  /// The densest deflate stream copies 258 bytes per 2 bits (RFC 1951, 3.2.5): 1032 to 1.
  static constexpr std::uint64_t max_deflate_ratio = 1032;

  /// An upper bound of the bytes to come out, known before any is unpacked. Check against it before
  /// allocating what a header asks for.
  std::uint64_t max_bytes() const;

  /// Fills `out`, or fails: the file is truncated or damaged; `what` names what was being read.
  void read(std::span<std::byte> out, std::string_view what);

  /// Reads as much of `out` as there is at once; how many bytes that was. 0: the end.
  std::size_t read_some(std::span<std::byte> out);

  /// Fails if anything follows. Of a gzipped file, this also checks length and CRC.
  void expect_end();

 private:
  std::size_t read_file(std::byte* out, std::size_t bytes);
  std::size_t unpack(std::span<std::byte> out);

  std::string name_;
  std::ifstream file_;
  std::uint64_t file_bytes_ = 0;
  bool gzipped_ = false;
  bool between_members_ = true;  // no gzip member has begun that has not ended
  z_stream stream_{};
  std::array<std::byte, 16384> packed_;
};

/// Memory is given before it is there, and what is too much would end the process much later:
/// throws DataError "`what` take 80 bytes, but 40 bytes of memory are free" if that is known.
void check_memory(std::string_view what, std::uint64_t bytes);

/// Text of a file, as a message may show it: at most `most` characters, '?' for what is not ASCII.
std::string printable(std::string_view text, std::size_t most = 40);

}  // namespace lockstep::data
