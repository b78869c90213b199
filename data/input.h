#pragma once
/// Where readers get their bytes: the reader says how many it expects, and these classes see to it
/// that not one is missing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/tensor.h"

struct gzFile_s;  // of zlib

namespace lockstep::data {

/// The densest deflate stream copies 258 bytes per 2 bits (RFC 1951, 3.2.5): 1032 to 1.
inline constexpr std::uint64_t max_deflate_ratio = 1032;

/// Bytes that are read from their beginning to their end. All functions throw DataError, which
/// names the source.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& name() const { return name_; }

  /// Reads as much of `out` as there is at once; how many bytes that was. 0: the end.
  virtual std::size_t read_some(std::span<std::byte> out) = 0;

  /// Fills `out`, or fails: the source is truncated; `what` names what was being read.
  void read(std::span<std::byte> out, std::string_view what);
  /// All the rest.
  std::string read_rest();
  /// The elements of a tensor, as they lie there. Fails before memory is asked for if the shape is
  /// none, if the source cannot hold as much, or if so much memory is not free.
  Tensor read_elements(std::span<const std::int64_t> sizes, DType dtype);
  /// Fails if anything follows. Of compressed bytes, this also checks length and CRC.
  void expect_end();

 protected:
  explicit ByteSource(std::string name) : name_(std::move(name)) {}

  std::uint64_t max_bytes_ = 0;  ///< an upper bound of what comes out, known before it is unpacked

 private:
  std::string name_;
};

/// A file, unpacked on the way if it is gzipped (RFC 1952; known by its first two bytes, whatever
/// its name). What follows the gzipped members is ignored, as gzip itself does.
class Input : public ByteSource {
 public:
  explicit Input(const std::string& path);
  std::size_t read_some(std::span<std::byte> out) override;

 private:
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
};

/// Throws DataError unless `path` is a regular file that can be opened.
void check_readable(const std::string& path);

/// What the file's header says. Throws DataError, which names the file, where Shape refuses it.
Shape shape_of(const std::string& file, std::span<const std::int64_t> sizes);

/// Memory is given before it is there, and what is too much would end the process much later:
/// throws DataError "`what` take 80 bytes, but 40 bytes of memory are free" if that is known.
void check_memory(std::string_view what, std::uint64_t bytes);

/// Text of a file, as a message may show it: at most `most` characters, '?' for what is not ASCII.
std::string printable(std::string_view text, std::size_t most = 40);

/// A whole file of a type that is not read here.
struct UnsupportedError : DataError {
  using DataError::DataError;
};

/// The array of the .npy format that the source is. Throws UnsupportedError for what is none, and
/// for one of a version, a type or with more dimensions than are known, before any element is read.
Tensor read_array(ByteSource& source);

}  // namespace lockstep::data
