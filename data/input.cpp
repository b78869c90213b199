#include "lockstep/data/input.h"

#include <algorithm>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/core/system/memory_limits.h"

namespace lockstep::data {
Input::Input(const std::filesystem::path& path) : name_(path.string()) {
  const std::string why = why_unreadable(name_);
  check<DataError>(why.empty(), "[read] {}: {}", name_, why);
  std::error_code error;
  file_bytes_ = std::filesystem::file_size(path, error);
  check<DataError>(!error, "[read] {}: {}", name_, error.message());
  file_.open(path, std::ios::binary);
  check<DataError>(file_.is_open(), "[read] {}: cannot be opened", name_);

  std::array<std::byte, 2> magic{};
  gzipped_ = read_file(magic.data(), magic.size()) == magic.size() &&
             magic == std::array{std::byte{0x1f}, std::byte{0x8b}};
  file_.clear();
  file_.seekg(0);
  constexpr int gzip_only = 16;
  if (gzipped_)
    check<DataError>(inflateInit2(&stream_, gzip_only + MAX_WBITS) == Z_OK,
                     "[read] {}: zlib cannot be started", name_);
}

Input::~Input() {
  if (gzipped_) inflateEnd(&stream_);
}

std::uint64_t Input::max_bytes() const {
  return gzipped_ ? file_bytes_ * max_deflate_ratio : file_bytes_;
}

void Input::read(std::span<std::byte> out, std::string_view what) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t got = read_some(out.subspan(done));
    check<DataError>(got > 0, "[read] {}: truncated: {} of {} bytes of {}", name_, done, out.size(),
                     what);
    done += got;
  }
}

void Input::expect_end() {
  std::byte extra;
  check<DataError>(read_some({&extra, 1}) == 0, "[read] {}: more bytes than its header says",
                   name_);
}

std::size_t Input::read_some(std::span<std::byte> out) {
  return gzipped_ ? unpack(out) : read_file(out.data(), out.size());
}

std::size_t Input::read_file(std::byte* out, std::size_t bytes) {
  file_.read(reinterpret_cast<char*>(out), static_cast<std::streamsize>(bytes));
  check<DataError>(!file_.bad(), "[read] {}: reading failed", name_);
  return static_cast<std::size_t>(file_.gcount());
}

// A gzipped file is one or more members, one after another; the end is where the file ends and no
// member is open.
std::size_t Input::unpack(std::span<std::byte> out) {
  const auto room =
      static_cast<uInt>(std::min<std::size_t>(out.size(), std::numeric_limits<uInt>::max()));
  stream_.next_out = reinterpret_cast<Bytef*>(out.data());
  stream_.avail_out = room;
  while (stream_.avail_out == room) {
    if (stream_.avail_in == 0) {
      stream_.next_in = reinterpret_cast<Bytef*>(packed_.data());
      stream_.avail_in = static_cast<uInt>(read_file(packed_.data(), packed_.size()));
      if (stream_.avail_in == 0) {
        check<DataError>(between_members_, "[read] {}: truncated gzip stream after {} bytes", name_,
                         file_bytes_);
        return 0;
      }
    }
    between_members_ = false;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    check<DataError>(status == Z_OK || status == Z_STREAM_END, "[read] {}: damaged gzip stream: {}",
                     name_, stream_.msg ? stream_.msg : zError(status));
    if (status == Z_STREAM_END) {
      between_members_ = true;
      inflateReset(&stream_);
    }
  }
  return room - stream_.avail_out;
}

void check_memory(std::string_view what, std::uint64_t bytes) {
  const std::uint64_t available = available_memory().value_or(bytes);
  check<DataError>(bytes <= available, "{} take {} bytes, but {} bytes of memory are free", what,
                   bytes, available);
}

std::string printable(std::string_view text, std::size_t most) {
  std::string result(text.substr(0, most));
  std::ranges::replace_if(
      result, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > most ? result + "..." : result;
}

}  // namespace lockstep::data
