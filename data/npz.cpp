// A zip archive (PKWARE, APPNOTE.TXT 6.3.10, section 4.3), read from its beginning to its end: a
// header and the bytes of each member, the central directory, the end record.

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "lockstep/data/input.h"
#include "lockstep/data/npy.h"

namespace lockstep::data {
namespace {

constexpr std::uint32_t in_zip64 = 0xffffffff;  // the size stands in the extra field

// A number of a record, low byte first.
template <class T>
T number_at(std::span<const std::byte> record, std::size_t offset) {
  T value;
  std::memcpy(&value, record.data() + offset, sizeof value);
  return value;
}

struct MemberHeader {
  std::string name;
  std::uint16_t flags, method;
  std::uint32_t crc;
  std::uint64_t packed, size;  // bytes

  bool deflated() const { return method == 8; }
};

// A member's bytes, unpacked; counts them and sums their CRC.
class Member {
 public:
  Member(Input& input, const MemberHeader& header, const std::string& name)
      : input_(input), header_(header), name_(name), packed_left_(header.packed) {
    if (header_.deflated())  // without zlib's own header
      check<DataError>(inflateInit2(&stream_, -MAX_WBITS) == Z_OK,
                       "[npz] {}: zlib cannot be started", name_);
  }
  ~Member() {
    if (header_.deflated()) inflateEnd(&stream_);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  void read(std::span<std::byte> out, std::string_view what) {
    check<DataError>(out.size() <= header_.size - done_,
                     "[npz] {}: truncated: {} of {} bytes of {}", name_, header_.size - done_,
                     out.size(), what);
    if (out.empty()) return;
    if (header_.deflated())
      unpack(out);
    else
      input_.read(out, what);
    done_ += out.size();
    crc_ = crc32_z(crc_, reinterpret_cast<const Bytef*>(out.data()), out.size());
  }

  // Checks that this was all of it.
  void finish() {
    check<DataError>(done_ == header_.size, "[npz] {}: more bytes than its header says", name_);
    if (header_.deflated()) {
      while (!ended_) unpack({});
      check<DataError>(packed_left_ == 0 && stream_.avail_in == 0,
                       "[npz] {}: damaged: bytes behind the deflated ones", name_);
    }
    check<DataError>(crc_ == header_.crc, "[npz] {}: damaged: its CRC is {:08x}, not {:08x}", name_,
                     crc_, header_.crc);
  }

 private:
  // Fills `out`; if that is empty, goes one piece further to the end of the stream.
  void unpack(std::span<std::byte> out) {
    std::byte extra;
    do {
      refill();
      const std::span<std::byte> room = out.empty() ? std::span(&extra, 1) : out;
      const auto most = static_cast<uInt>(std::min<std::size_t>(room.size(), 1u << 30));
      stream_.next_out = reinterpret_cast<Bytef*>(room.data());
      stream_.avail_out = most;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      ended_ = status == Z_STREAM_END;
      const std::size_t got = most - stream_.avail_out;
      check<DataError>(
          (status == Z_OK || ended_) && got <= out.size() && (!ended_ || got == out.size()),
          "[npz] {}: damaged deflate stream: {}", name_,
          stream_.msg ? stream_.msg : "of another length than its header says");
      out = out.subspan(got);
    } while (!out.empty());
  }

  void refill() {
    if (stream_.avail_in > 0 || packed_left_ == 0) return;  // at the end inflate says what is wrong
    const std::size_t bytes = std::min<std::uint64_t>(packed_left_, buffer_.size());
    input_.read(std::span(buffer_).first(bytes), "a deflated member");
    packed_left_ -= bytes;
    stream_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_in = static_cast<uInt>(bytes);
  }

  Input& input_;
  const MemberHeader& header_;
  const std::string& name_;
  std::uint64_t packed_left_, done_ = 0;
  std::uint32_t crc_ = 0;
  bool ended_ = false;
  z_stream stream_{};
  std::array<std::byte, 16384> buffer_;
};

class Archive {
 public:
  explicit Archive(const std::filesystem::path& path) : input_(path) {}

  Fields read() {
    Fields arrays;
    std::uint64_t listed = 0;
    std::uint32_t record = signature();
    for (; record == 0x04034b50; record = signature()) read_member(arrays);
    for (; record == 0x02014b50; record = signature(), ++listed) skip_listing();
    if (record == 0x06064b50) {  // the end record of zip64, and where that lies
      skip(number_at<std::uint64_t>(bytes<8>("the zip64 end record"), 0), "the zip64 end record");
      record = signature();
      if (record == 0x07064b50) {
        skip(16, "the zip64 end locator");
        record = signature();
      }
    }
    check<DataError>(record == 0x06054b50, "[npz] {}: {} instead of the next record: 0x{:08x}",
                     input_.name(), arrays.size() ? "damaged" : "not an .npz file", record);
    const auto end = bytes<18>("the end record");
    const auto count = number_at<std::uint16_t>(end, 6);
    check<DataError>(listed == arrays.size() && (count == listed || count == 0xffff),
                     "[npz] {}: damaged: {} members, of which {} are listed, and {} are counted",
                     input_.name(), arrays.size(), listed, count);
    skip(number_at<std::uint16_t>(end, 16), "the comment");
    input_.expect_end();
    return arrays;
  }

 private:
  template <std::size_t size>
  std::array<std::byte, size> bytes(std::string_view what) {
    std::array<std::byte, size> result;
    input_.read(result, what);
    return result;
  }
  std::uint32_t signature() { return number_at<std::uint32_t>(bytes<4>("the next record"), 0); }

  void skip(std::uint64_t count, std::string_view what) {
    std::array<std::byte, 4096> ignored;
    for (; count > 0; count -= std::min<std::uint64_t>(count, ignored.size()))
      input_.read(std::span(ignored).first(std::min<std::uint64_t>(count, ignored.size())), what);
  }

  void skip_listing() {
    const auto listing = bytes<42>("the central directory");
    for (const std::size_t offset : {24, 26, 28})  // lengths of name, extra field, comment
      skip(number_at<std::uint16_t>(listing, offset), "the central directory");
  }

  MemberHeader read_member_header() {
    const auto record = bytes<26>("a member's header");
    MemberHeader header{.name = {},
                        .flags = number_at<std::uint16_t>(record, 2),
                        .method = number_at<std::uint16_t>(record, 4),
                        .crc = number_at<std::uint32_t>(record, 10),
                        .packed = number_at<std::uint32_t>(record, 14),
                        .size = number_at<std::uint32_t>(record, 18)};
    header.name.resize(number_at<std::uint16_t>(record, 22));
    input_.read(std::as_writable_bytes(std::span(header.name)), "a member's name");
    std::vector<std::byte> extra(number_at<std::uint16_t>(record, 24));
    input_.read(extra, "a member's extra field");
    std::span<const std::byte> left = extra;
    while (left.size() >= 4) {  // pieces of {kind, bytes, contents}
      const auto kind = number_at<std::uint16_t>(left, 0);
      const std::size_t size = number_at<std::uint16_t>(left, 2);
      left = left.subspan(4);
      check<DataError>(size <= left.size(), "[npz] {}: damaged: a member's extra field",
                       input_.name());
      if (kind == 1 && size >= 16 && header.size == in_zip64 && header.packed == in_zip64) {
        header.size = number_at<std::uint64_t>(left, 0);
        header.packed = number_at<std::uint64_t>(left, 8);
      }
      left = left.subspan(size);
    }
    return header;
  }

  void read_member(Fields& arrays) {
    constexpr std::uint16_t encrypted = 1, sizes_follow = 8;
    const MemberHeader header = read_member_header();
    const std::string name = fmt::format("{}: {}", input_.name(), printable(header.name));
    check<DataError>(!(header.flags & encrypted), "[npz] {}: it is encrypted", name);
    check<DataError>(!(header.flags & sizes_follow),
                     "[npz] {}: its size stands behind it, as in an archive that was written to a "
                     "pipe: save to a file",
                     name);
    check<DataError>(header.method == 0 || header.deflated(),
                     "[npz] {}: compression method {} is neither stored (0) nor deflated (8)", name,
                     header.method);
    const std::uint64_t packed_most = std::min(header.packed, input_.max_bytes());
    check<DataError>(header.deflated() || header.packed == header.size,
                     "[npz] {}: damaged: {} stored bytes of {}", name, header.packed, header.size);
    constexpr std::string_view suffix = ".npy";
    check<DataError>(header.name.ends_with(suffix), "[npz] {}: it is no .npy array", name);
    const std::string array = header.name.substr(0, header.name.size() - suffix.size());
    check<DataError>(!arrays.find(array), "[npz] {}: there are two of this name", name);

    Member member(input_, header, name);
    arrays.set(
        array,
        detail::read_array(
            {name,
             header.deflated() ? std::min(header.size, packed_most * Input::max_deflate_ratio)
                               : packed_most,
             [&](std::span<std::byte> out, std::string_view what) { member.read(out, what); }}));
    member.finish();
  }

  Input input_;
};

}  // namespace

Fields read_npz(const std::string& path) { return Archive(path).read(); }

}  // namespace lockstep::data
