#include "lockstep/data/input.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/core/error.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/core/system/memory_limits.h"
#include "lockstep/core/system/progress.h"

namespace lockstep::data {

void ByteSource::read(std::span<std::byte> out, std::string_view what) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t got = read_some(out.subspan(done));
    check<DataError>(got > 0, "[read] {}: truncated: {} of {} bytes of {}", name_, done, out.size(),
                     what);
    done += got;
  }
}

std::string ByteSource::read_rest() {
  std::string text;
  std::size_t done = 0, got = 0;
  do {
    if (done == text.size()) {
      const std::size_t room = std::min(std::max<std::size_t>(2 * done, 1 << 16), max_bytes_ + 1);
      check_memory(fmt::format("[read] {}: its bytes", name_), room);
      text.resize(room);
    }
    got = read_some(std::as_writable_bytes(std::span(text)).subspan(done));
    done += got;
  } while (got > 0);
  text.resize(done);
  return text;
}

Tensor ByteSource::read_elements(std::span<const std::int64_t> sizes, DType dtype) {
  const Shape shape = shape_of(name_, sizes);
  const std::uint64_t bytes = static_cast<std::uint64_t>(shape.numel()) * size_of(dtype);
  check<DataError>(
      bytes <= max_bytes_,
      "[read] {}: truncated: {} elements of shape {} take {} bytes, it holds at most {}", name_,
      dtype, shape, bytes, max_bytes_);
  check_memory(fmt::format("[read] {}: {} elements of shape {}", name_, dtype, shape), bytes);
  const Tensor result = Tensor::empty(shape, dtype);
  read({result.raw(), result.bytes()}, "the elements");
  return result;
}

void ByteSource::expect_end() {
  std::byte extra;
  check<DataError>(read_some({&extra, 1}) == 0, "[read] {}: more bytes than its header says",
                   name_);
}

Input::Input(const std::string& path) : ByteSource(path), file_(nullptr, gzclose) {
  check_readable(name());
  std::error_code error;
  max_bytes_ = std::filesystem::file_size(path, error);
  check<DataError>(!error, "[read] {}: {}", name(), error.message());
  file_.reset(gzopen(path.c_str(), "rb"));
  check<DataError>(file_ != nullptr, "[read] {}: cannot be opened", name());
  if (!gzdirect(file_.get())) max_bytes_ *= max_deflate_ratio;
}

std::size_t Input::read_some(std::span<std::byte> out) {
  Progress::note();
  const std::size_t got = gzfread(out.data(), 1, out.size(), file_.get());
  int code = Z_OK;
  const std::string_view why = gzerror(file_.get(), &code);
  check<DataError>(code == Z_OK, "[read] truncated or damaged: {}", why);  // `why` names the file
  return got;
}

void check_readable(const std::string& path) {
  const std::string why = why_unreadable(path);
  check<DataError>(why.empty(), "[read] {}: {}", path, why);
}

Shape shape_of(const std::string& file, std::span<const std::int64_t> sizes) {
  try {
    return Shape(sizes);
  } catch (const ShapeError& error) {
    fail<DataError>("[read] {}: {}", file, error.what());
  }
}

void check_memory(std::string_view what, std::uint64_t bytes) {
  const std::optional<std::uint64_t> available = memory_shortage(bytes);
  check<DataError>(!available, "{} take {} bytes, but {} bytes of memory are free", what, bytes,
                   available.value_or(0));
}

std::string printable(std::string_view text, std::size_t most) {
  std::string result(text.substr(0, most));
  std::ranges::replace_if(
      result, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > most ? result + "..." : result;
}

}  // namespace lockstep::data
