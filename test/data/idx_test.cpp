#include "lockstep/data/idx.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "data/files.h"
#include "lockstep/core/memory.h"

namespace lockstep::data {
namespace {

std::string error_of(const std::filesystem::path& file) {
  try {
    read_idx(file);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

#define CHECK_MESSAGE_HAS(file, part)               \
  do {                                              \
    const std::string message = error_of(file);     \
    CAPTURE(message);                               \
    CHECK(message.find(part) != std::string::npos); \
  } while (false)

TEST_CASE("idx: every element type that has a DType, big-endian in the file") {
  const TemporaryFolder folder;
  const Tensor u8 =
      read_idx(write(folder, "u8", idx_bytes(0x08, {2, 3}, {0, 1, 127, 128, 254, 255})));
  CHECK(u8.shape() == Shape{2, 3});
  CHECK(u8.to_vector<std::uint8_t>() == Bytes{0, 1, 127, 128, 254, 255});

  const Tensor i32 = read_idx(write(
      folder, "i32", idx_bytes(0x0C, {3}, {0, 0, 1, 2, 0xff, 0xff, 0xff, 0xfe, 0x80, 0, 0, 0})));
  CHECK(i32.to_vector<std::int32_t>() == std::vector<std::int32_t>{258, -2, INT32_MIN});

  // IEEE 754: 1.5 = 3fc00000, -2 = c0000000; in f64 3ff8..., c000....
  const Tensor f32 =
      read_idx(write(folder, "f32", idx_bytes(0x0D, {2, 1}, {0x3f, 0xc0, 0, 0, 0xc0, 0, 0, 0})));
  CHECK(f32.to_vector<float>() == std::vector<float>{1.5f, -2});
  const Tensor f64 = read_idx(
      write(folder, "f64",
            idx_bytes(0x0E, {1, 2}, {0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0})));
  CHECK(f64.to_vector<double>() == std::vector<double>{1.5, -2});
}

TEST_CASE("idx: one to four dimensions, and sizes of 0") {
  const TemporaryFolder folder;
  CHECK(read_idx(write(folder, "1", idx_bytes(8, {5}, ramp(5)))).shape() == Shape{5});
  CHECK(read_idx(write(folder, "3", idx_bytes(8, {2, 3, 4}, ramp(24)))).shape() == Shape{2, 3, 4});
  const Tensor four = read_idx(write(folder, "4", idx_bytes(8, {1, 2, 3, 4}, ramp(24))));
  CHECK(four.shape() == Shape{1, 2, 3, 4});
  CHECK(four.to_vector<std::uint8_t>() == ramp(24));
  CHECK(read_idx(write(folder, "0", idx_bytes(8, {0, 28, 28}, {}))).shape() == Shape{0, 28, 28});
  CHECK(read_idx(write(folder, "00", gzip(idx_bytes(8, {0}, {})))).shape() == Shape{0});
}

TEST_CASE("idx: gzipped files, whatever their name, of one member or several") {
  const TemporaryFolder folder;
  const Bytes bytes = idx_bytes(8, {300, 200}, ramp(60000, 3, 7));
  const Bytes packed = gzip(bytes);
  CHECK(read_idx(write(folder, "a.gz", packed)).to_vector<std::uint8_t>() == ramp(60000, 3, 7));
  CHECK(read_idx(write(folder, "a", packed)).to_vector<std::uint8_t>() == ramp(60000, 3, 7));

  Bytes two = gzip(Bytes(bytes.begin(), bytes.begin() + 1000));
  const Bytes rest = gzip(Bytes(bytes.begin() + 1000, bytes.end()));
  two.insert(two.end(), rest.begin(), rest.end());
  CHECK(read_idx(write(folder, "b.gz", two)).to_vector<std::uint8_t>() == ramp(60000, 3, 7));
  two.push_back(0);  // padding, as of a tape
  CHECK(read_idx(write(folder, "c.gz", two)).to_vector<std::uint8_t>() == ramp(60000, 3, 7));
}

TEST_CASE("idx: what is wrong is named") {
  const TemporaryFolder folder;
  const auto file = [&](const Bytes& bytes) { return write(folder, "file", bytes); };
  CHECK_MESSAGE_HAS(folder.path() / "absent", "absent: No such file");
  CHECK_MESSAGE_HAS(folder.path(), "it is a folder, not a regular file");
  CHECK_MESSAGE_HAS("/dev/zero", "it is a device, not a regular file");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_MESSAGE_HAS(folder.path() / "pipe", "it is a pipe, not a regular file");
  CHECK_MESSAGE_HAS(file({}), "truncated: 0 of 4 bytes of the magic number");
  CHECK_MESSAGE_HAS(file({1, 0, 8, 1, 0, 0, 0, 0}), "begins with 0x01000801");
  CHECK_MESSAGE_HAS(file(idx_bytes(0x09, {1}, {0})), "i8 (0x09)");
  CHECK_MESSAGE_HAS(file(idx_bytes(0x0B, {1}, {0, 0})), "i16 (0x0b)");
  CHECK_MESSAGE_HAS(file(idx_bytes(0x0A, {1}, {0})), "element type 0x0a");
  CHECK_MESSAGE_HAS(file(idx_bytes(8, {}, {0})), "0 dimensions; 1 to 4");
  CHECK_MESSAGE_HAS(file(idx_bytes(8, {1, 1, 1, 1, 1}, {0})), "5 dimensions; 1 to 4");
  CHECK_MESSAGE_HAS(file({0, 0, 8, 2, 0, 0, 0, 1, 0, 0}), "truncated: 6 of 8 bytes of the sizes");
  CHECK_MESSAGE_HAS(file(idx_bytes(8, {2, 3}, ramp(5))), "truncated: 5 of 6 bytes of the elements");
  CHECK_MESSAGE_HAS(file(idx_bytes(8, {2, 3}, ramp(7))), "more bytes than its header says");
  CHECK_MESSAGE_HAS(file(gzip(idx_bytes(8, {2, 3}, ramp(7)))), "more bytes than its header says");
  CHECK_MESSAGE_HAS(file(gzip(idx_bytes(8, {2, 3}, ramp(5)))), "truncated: 5 of 6");
}

TEST_CASE("idx: sizes are checked against the file before memory is asked for") {
  const TemporaryFolder folder;
  constexpr std::uint32_t most = 0xffffffff;
  const auto before = memory::statistics().system_allocations;
  for (const Bytes& bytes :
       {idx_bytes(8, {most}, ramp(9)), idx_bytes(8, {most, most}, ramp(9)),
        idx_bytes(8, {most, most, most, most}, ramp(9)), idx_bytes(0x0E, {0x80000000u, 1}, ramp(9)),
        idx_bytes(8, {most, most, most, 0}, ramp(9)), idx_bytes(0x0E, {1u << 30, 1u << 29}, {})}) {
    CHECK(error_of(write(folder, "plain", bytes)) != "no error");
    CHECK(error_of(write(folder, "packed", gzip(bytes))) != "no error");
  }
  CHECK(memory::statistics().system_allocations == before);
}

TEST_CASE("idx: elements that do not fit into the free memory are refused before it is asked for") {
  const TemporaryFolder folder;
  const auto before = memory::statistics().system_allocations;
  constexpr std::uint32_t side = 1u << 21;  // 4 TiB in all
  const Bytes header = idx_bytes(8, {side, side}, {});
  for (const bool packed : {false, true}) {
    // The rest of the file is a hole, and takes no room.
    const auto file = write(folder, packed ? "packed" : "plain", packed ? gzip(header) : header);
    std::filesystem::resize_file(file, (std::uintmax_t{1} << 42) / (packed ? 1000 : 1) + 12);
    CHECK_MESSAGE_HAS(file, packed ? "packed: u8 elements" : "plain: u8 elements");
    CHECK_MESSAGE_HAS(file, "take 4398046511104 bytes, but ");
    CHECK_MESSAGE_HAS(file, " bytes of memory are free");
  }
  CHECK(memory::statistics().system_allocations == before);
}

TEST_CASE("idx: truncation at every byte") {
  const TemporaryFolder folder;
  const Bytes plain = idx_bytes(0x0D, {3, 2}, ramp(24));
  const Bytes packed = gzip(plain);
  for (const Bytes* whole : {&plain, &packed}) {
    for (std::size_t length = 0; length < whole->size(); ++length) {
      CAPTURE(length);
      const auto end = whole->begin() + static_cast<std::ptrdiff_t>(length);
      CHECK_MESSAGE_HAS(write(folder, "file", Bytes(whole->begin(), end)), "truncated");
    }
    CHECK(error_of(write(folder, "file", *whole)) == "no error");
  }
}

TEST_CASE("idx: every bit of the header flipped") {
  const TemporaryFolder folder;
  const Bytes whole = idx_bytes(8, {3, 2, 4}, ramp(24));
  for (std::size_t bit = 0; bit < 16 * 8; ++bit) {
    CAPTURE(bit);
    Bytes bytes = whole;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    // One element more or less in any size, another type or rank: nothing fits the file's length.
    CHECK(error_of(write(folder, "file", bytes)) != "no error");
  }
}

TEST_CASE("idx: every byte of a gzipped file changed gives the same tensor or an error") {
  const TemporaryFolder folder;
  const Bytes whole = gzip(idx_bytes(8, {10, 10}, ramp(100, 1, 13)));
  int errors = 0;
  for (std::size_t i = 0; i < whole.size(); ++i)
    for (std::uint8_t mask : {1, 0x80, 0xff}) {
      Bytes bytes = whole;
      bytes[i] ^= mask;
      try {
        // Some bytes of the gzip header mean nothing here (time, operating system).
        const Tensor got = read_idx(write(folder, "file", bytes));
        CHECK(got.to_vector<std::uint8_t>() == ramp(100, 1, 13));
      } catch (const DataError&) {
        ++errors;
      }
    }
  CHECK(errors > static_cast<int>(whole.size()));  // most of them
}

}  // namespace
}  // namespace lockstep::data
