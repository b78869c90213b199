#include "lockstep/data/npy.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <zip.h>

#include <algorithm>
#include <functional>

#include "data/stored.h"
#include "lockstep/core/memory.h"
#include "lockstep/core/system/progress.h"
#include "lockstep/data/csv.h"
#include "lockstep/data/idx.h"

namespace lockstep::data {
namespace {

using Read = std::function<void(const std::filesystem::path&)>;
const Read npy = [](const std::filesystem::path& file) { read_npy(file); };
const Read npz = [](const std::filesystem::path& file) {
  const Fields arrays = read_npz(file);
  for (const auto& [name, why] : arrays.refused()) (void)arrays[name];  // asked for, it is refused
};

/// What a reader says of a file: one line, or "no error". Anything but a DataError ends the test.
std::string said(const Read& read, const std::filesystem::path& file) {
  try {
    read(file);
  } catch (const DataError& error) {
    const std::string text = error.what();
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.find("file") != std::string::npos);  // its name
    return text;
  }
  return "no error";
}

#define CHECK_SAYS(read, file, part)                 \
  do {                                               \
    const std::string message_ = said(read, file);   \
    CAPTURE(message_);                               \
    CHECK(message_.find(part) != std::string::npos); \
  } while (false)

/// An .npy file of version 1 with this header and `count` bytes of elements.
Bytes npy_bytes(const std::string& header, std::size_t count) {
  Bytes bytes{0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<std::uint8_t>(header.size()), 0};
  bytes.insert(bytes.end(), header.begin(), header.end());
  const Bytes rest = ramp(count);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}
Bytes npy_of(const std::string& shape, std::size_t count, const std::string& type = "|u1") {
  return npy_bytes("{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n",
                   count);
}

void check_archive(const Fields& read, const nlohmann::json& members) {
  CHECK(read.size() == members.size());
  for (const auto& [name, expected] : members.items()) {
    CAPTURE(name);
    check_holds(read[name], expected);
  }
}

TEST_CASE("npy: NumPy's arrays of every type, order and version") {
  const TemporaryFolder folder;
  std::size_t i = 0;
  for (const auto& stored_file : stored().at("npy")) {
    CAPTURE(i);
    ++i;
    const Bytes bytes = bytes_of_hex(stored_file.at("hex"));
    check_holds(read_npy(write(folder, "file.npy", bytes)), stored_file);
    check_holds(read_npy(write(folder, "file.npy.gz", gzip(bytes))), stored_file);
  }
  CHECK(i > 40);
}

TEST_CASE("npy: what is not supported is refused by its name") {
  const TemporaryFolder folder;
  for (const auto& bad : stored().at("bad_npy"))
    CHECK_SAYS(npy, write(folder, "file", bytes_of_hex(bad.at("hex"))),
               bad.at("refused").get<std::string>());
  for (const auto& bad : stored().at("bad_npz"))
    CHECK_SAYS(npz, write(folder, "file", bytes_of_hex(bad.at("hex"))),
               bad.at("refused").get<std::string>());
}

TEST_CASE("npy: headers that are damaged or lie") {
  const TemporaryFolder folder;
  const auto file = [&](const Bytes& bytes) { return write(folder, "file", bytes); };
  CHECK(said(npy, file(npy_of("(2, 3)", 6))) == "no error");
  CHECK(said(npy, file(npy_bytes("{\"shape\":(6,),\"descr\":\"|u1\",\"fortran_order\":True}",
                                 6))) == "no error");
  for (const char* header :
       {"", "{", "}", "{}", "{'descr': '|u1'}", "{'descr': '|u1', 'fortran_order': False}",
        "{'descr': '|u1', 'fortran_order': Maybe, 'shape': ()}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': ()} more",
        "{'descr': '|u1', 'fortran_order': False, 'shape': 1}",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': ()}",
        "{'descr': 1, 'fortran_order': False, 'shape': ()}", "['descr', 'fortran_order', 'shape']",
        "{'descr': '|u1, 'fortran_order': False, 'shape': ()}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1.5,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,)}"})
    CHECK_SAYS(npy, file(npy_bytes(header, 1)), "header is damaged");
  CHECK_SAYS(npy, file(npy_of("()", 1, "")), "elements of type  are not supported");
  CHECK_SAYS(npy, file(npy_of("()", 1, ">u2")), "big-endian elements (>u2)");
  CHECK_SAYS(npy, file(npy_of("(2, 3)", 5)), "truncated: 5 of 6 bytes of the elements");
  CHECK_SAYS(npy, file(npy_of("(2, 3)", 7)), "more bytes than its header says");
  CHECK_SAYS(npy, file(gzip(npy_of("(2, 3)", 7))), "more bytes than its header says");
  CHECK_SAYS(npy, file(Bytes{'P', 'K', 3, 4, 0, 0, 0, 0, 0}), "does not begin with \\x93NUMPY");
  Bytes version = npy_of("()", 1);
  version[6] = 4;
  CHECK_SAYS(npy, file(version), "version 4.0 of the format");
  version[6] = 2;  // then the length has four bytes
  CHECK_SAYS(npy, file(version), "is too long: at most 10000");
  CHECK_SAYS(npy, folder / "file2", "No such file");
  REQUIRE(::mkfifo((folder / "file_pipe").c_str(), 0600) == 0);
  CHECK_SAYS(npy, folder / "file_pipe", "it is a pipe");
  CHECK_SAYS(npz, folder / "file_pipe", "it is a pipe");
}

TEST_CASE("npy: headers of Python 2, types without a byte order, and versions 1 to 3") {
  const TemporaryFolder folder;
  const auto shape_of = [&](const Bytes& bytes) {
    return read_npy(write(folder, "file", bytes)).shape();
  };
  CHECK(shape_of(npy_of("(2L, 3L)", 6)) == Shape{2, 3});
  CHECK(shape_of(npy_of("(6L,)", 6)) == Shape{6});
  CHECK(shape_of(npy_of("(2L , 3)", 6)) == Shape{2, 3});
  for (const char* damaged : {"(2L3,)", "(L,)", "(2LL,)", "L", "(2l,)"})
    CHECK_SAYS(npy, write(folder, "file", npy_of(damaged, 6)), "header is damaged");
  for (const auto& [type, dtype] :
       {std::pair("f2", DType::f16), std::pair("f4", DType::f32), std::pair("f8", DType::f64),
        std::pair("i4", DType::i32), std::pair("i8", DType::i64), std::pair("u1", DType::u8),
        std::pair("b1", DType::u8)})
    for (const std::string order : {"", "<", "=", "|"}) {
      const Bytes bytes = npy_of("(2,)", 2 * size_of(dtype), order + type);
      CHECK(read_npy(write(folder, "file", bytes)).dtype() == dtype);
    }
  for (const char* type : {">u1", ">b1"})  // of one byte, in any order
    CHECK(shape_of(npy_of("(2,)", 2, type)) == Shape{2});
  for (const std::uint8_t version : {2, 3}) {  // the header's length has four bytes
    Bytes bytes = npy_of("(2L, 3)", 6, "u1");
    bytes[6] = version;
    bytes.insert(bytes.begin() + 10, {0, 0});
    CHECK(shape_of(bytes) == Shape{2, 3});
  }
}

TEST_CASE("npy: sizes are checked against the file before memory is asked for") {
  const TemporaryFolder folder;
  const auto before = memory::statistics().system_allocations;
  for (const char* shape : {"(4611686018427387904, 4)", "(4611686018427387904,)", "(1000000,)",
                            "(9223372036854775807, 2)", "(4294967296, 4294967296)",
                            "(9223372036854775807, 9223372036854775807, 0)"})
    for (const char* type : {"|u1", "<f8"}) {
      CHECK(said(npy, write(folder, "file", npy_of(shape, 9, type))) != "no error");
      CHECK(said(npy, write(folder, "file", gzip(npy_of(shape, 9, type)))) != "no error");
    }
  const auto hole = write(folder, "file", npy_of("(4398046511104,)", 0));  // 4 TiB
  std::filesystem::resize_file(hole, std::filesystem::file_size(hole) + (std::uintmax_t{1} << 42));
  CHECK_SAYS(npy, hole, "take 4398046511104 bytes, but ");
  CHECK(memory::statistics().system_allocations == before);
}

TEST_CASE("npz: NumPy's archives, stored and deflated") {
  const TemporaryFolder folder;
  for (const auto& archive : stored().at("npz")) {
    const Bytes bytes = bytes_of_hex(archive.at("hex"));
    check_archive(read_npz(write(folder, "file.npz", bytes)), archive.at("members"));
  }
  const Fields mixed = read_npz(write(folder, "file", bytes_of_hex(stored().at("mixed_npz"))));
  REQUIRE(mixed["mixed"].shape() == Shape{6000});
  for (std::int64_t i = 0; i < 6000; ++i)
    REQUIRE(mixed["mixed"].data<std::int64_t>()[i] == i * 2654435761 % (std::int64_t{1} << 32));
}

using Members = std::vector<std::pair<std::string, Bytes>>;

void write_npz(const std::string& path, const Members& members, bool encrypt_last = false) {
  int code = 0;
  zip_t* const archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  REQUIRE(archive);
  zip_int64_t index = 0;
  for (const auto& [name, bytes] : members) {
    index =
        zip_file_add(archive, name.c_str(),
                     zip_source_buffer(archive, bytes.data(), bytes.size(), 0), ZIP_FL_ENC_CP437);
    REQUIRE(index >= 0);
  }
  if (encrypt_last)
    REQUIRE(zip_file_set_encryption(archive, static_cast<zip_uint64_t>(index), ZIP_EM_AES_256,
                                    "secret") == 0);
  REQUIRE(zip_close(archive) == 0);
}

Bytes with(Bytes bytes, std::size_t at, std::uint8_t value) {
  bytes.at(at) = value;
  return bytes;
}

TEST_CASE("npz: what cannot be read harms no other array, and is refused when it is asked for") {
  struct Unread {
    std::string name;
    Bytes bytes;
    const char* why;
  };
  const std::vector<Unread> all = {
      {"text.npy", npy_of("(1,)", 8, "<U2"), "elements of type <U2"},
      {"u2.npy", npy_of("(2,)", 4, "<u2"), "elements of type <u2"},
      {"big.npy", npy_of("(2,)", 8, ">f4"), "big-endian elements (>f4)"},
      {"objects.npy", npy_of("(1,)", 3, "|O"), "Python objects (|O)"},
      {"deep.npy", npy_of("(1, 1, 1, 1, 1, 1, 2)", 2), "7 dimensions; at most 6"},
      {"pairs.npy",
       npy_bytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4),
       "structured arrays"},
      {"notes.txt", Bytes{'h', 'i'}, "it is no .npy array"},
      {"empty.npy", Bytes{}, "not an .npy file: it is empty"},
      {"short.npy", Bytes{'h', 'i'}, "does not begin with \\x93NUMPY"},
      {"other.npy", ramp(100), "does not begin with \\x93NUMPY"},
      {"other large.npy", ramp(300000, 1), "does not begin with \\x93NUMPY"},
      {"newer.npy", with(npy_of("(2,)", 2), 6, 9), "version 9.0 of the format"},
      {"newer minor.npy", with(npy_of("(2,)", 2), 7, 1), "version 1.1 of the format"},
      {"long.npy", with(npy_of("(2,)", 20000), 9, 80), "bytes is too long: at most 10000"},
      {"w\xe9ight.npy", npy_of("(2,)", 2), "its name is not UTF-8"},
  };
  const TemporaryFolder folder;
  const std::string path = folder / "file.npz";
  const Bytes good = npy_of("(2, 3)", 6);
  Members members{{"x.npy", good}};
  for (const Unread& unread : all) members.emplace_back(unread.name, unread.bytes);
  members.emplace_back("y.npy", good);
  write_npz(path, members);

  const Fields read = read_npz(path);
  CHECK(read.names() == "x, y");
  CHECK(read["x"].shape() == Shape{2, 3});
  REQUIRE(read.refused().size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string& name = read.refused()[i].first;
    CAPTURE(name);
    const Read field = [&](const auto&) { (void)read[name]; };
    CHECK_SAYS(field, path, all[i].why);
    CHECK(!read.find(name));
  }
}

TEST_CASE("npz: an encrypted member is refused, and harms no other one") {
  if (!zip_encryption_method_supported(ZIP_EM_AES_256, 1)) return;  // cannot write one
  const TemporaryFolder folder;
  const std::string path = folder / "file.npz";
  const Bytes good = npy_of("(2, 3)", 6);
  write_npz(path, {{"x.npy", good}, {"secret.npy", good}}, true);
  const Fields read = read_npz(path);
  CHECK(read.names() == "x");
  CHECK_SAYS([&](const auto&) { (void)read["secret"]; }, path, "secret.npy: it is encrypted");
}

TEST_CASE("npz: x.npy is the array x, whatever else is called x") {
  const TemporaryFolder folder;
  const std::string path = folder / "file.npz";
  const std::pair<std::string, Bytes> array{"x.npy", npy_of("(2, 3)", 6)}, text{"x", {'h', 'i'}},
      other{"y.npy", npy_of("(1,)", 1)};
  for (const Members& members : {Members{array, text, other}, Members{text, other, array}}) {
    write_npz(path, members);
    const Fields all = read_npz(path);
    CHECK(all.size() == 2);
    CHECK(all["x"].shape() == Shape{2, 3});
  }
  write_npz(path, {text, other});
  CHECK_SAYS([](const auto& file) { (void)read_npz(file)["x"]; }, path, "it is no .npy array");
}

TEST_CASE("npz: what is damaged is not taken for something else") {
  const TemporaryFolder folder;
  const std::string magic = "\x93NUMPY";
  int archives = 0;
  for (const auto& archive : stored().at("npz")) {
    if (archive.at("compressed") || archive.at("members").empty()) continue;
    ++archives;
    const Bytes whole = bytes_of_hex(archive.at("hex"));
    const auto found =
        std::search(whole.begin(), whole.end(), magic.begin(), magic.end(),
                    [](auto a, auto b) { return a == static_cast<std::uint8_t>(b); });
    REQUIRE(found != whole.end());
    const auto begin = static_cast<std::size_t>(found - whole.begin());
    for (const std::size_t at : {0, 5, 6, 7, 9}) {  // magic, version, the header's length
      CAPTURE(at);
      const auto file = write(folder, "file", with(whole, begin + at, 0xee));
      CHECK_SAYS([](const auto& path) { read_npz(path); }, file, "damaged");
    }
  }
  CHECK(archives > 0);
}

TEST_CASE("npy: a structured array is refused as one, whatever its fields are called") {
  const TemporaryFolder folder;
  for (const std::string name : {"'a'", "'it\\'s'", "\"it's\"", "'say \"x\"'", "'gr\xf6\xdf'",
                                 "'\\n'", "'(1, 2]'", "'descr'", "'3L,)'"})
    for (const std::string begin : {"{'descr': [(", "{\"descr\" : [(", "{'descr':[("}) {
      CAPTURE(name);
      const std::string header =
          begin + name + ", '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (1,), }\n";
      CHECK_SAYS(npy, write(folder, "file", npy_bytes(header, 8)), "structured arrays");
    }
}

TEST_CASE("npy, npz: truncation at every byte") {
  const TemporaryFolder folder;
  const Bytes array = npy_of("(2, 3)", 6);
  const auto cut_everywhere = [&](const Read& read, const Bytes& whole) {
    CHECK(said(read, write(folder, "file", whole)) == "no error");
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CAPTURE(length);
      const auto end = whole.begin() + static_cast<std::ptrdiff_t>(length);
      CHECK(said(read, write(folder, "file", Bytes(whole.begin(), end))) != "no error");
    }
  };
  cut_everywhere(npy, array);
  cut_everywhere(npy, gzip(array));
  for (const auto& archive : stored().at("npz"))
    if (archive.at("compressed")) cut_everywhere(npz, bytes_of_hex(archive.at("hex")));
}

TEST_CASE(
    "npy, npz: every byte changed gives an array or an error, of an archive the same arrays") {
  const TemporaryFolder folder;
  const auto change_everywhere = [&](const Read& read, const Bytes& whole) {
    int errors = 0;
    for (std::size_t i = 0; i < whole.size(); ++i)
      for (const std::uint8_t mask : {1, 0x20, 0x80, 0xff}) {
        CAPTURE(i);
        Bytes bytes = whole;
        bytes[i] ^= mask;
        errors += said(read, write(folder, "file", bytes)) != "no error";
      }
    return errors;
  };
  for (const std::size_t i : {std::size_t{1}, std::size_t{35}, std::size_t{36}}) {
    const Bytes whole = bytes_of_hex(stored().at("npy")[i].at("hex"));
    CHECK(change_everywhere(npy, whole) > 100);
  }
  for (const auto& archive : stored().at("npz")) {
    if (!archive.at("compressed")) continue;
    const Read same = [&](const std::filesystem::path& file) {
      const Fields read = read_npz(file);
      for (const Field& field : read)  // another name may be read, but no other elements
        if (const auto expected = archive.at("members").find(field.name);
            expected != archive.at("members").end())
          check_holds(field.value, *expected);
    };
    const Bytes whole = bytes_of_hex(archive.at("hex"));
    CHECK(change_everywhere(same, whole) > static_cast<int>(whole.size()));
  }
}

TEST_CASE("files: each line of a table, and each part of an array that is read, is work") {
  const auto progress = Progress::of_this_thread();
  const auto steps = [&](const auto& read) {
    std::uint64_t before = 0, after = 0;
    (void)progress->at_work(before);
    read();
    (void)progress->at_work(after);
    return after - before;
  };
  const TemporaryFolder folder;
  const std::string file = folder / "file";
  std::ofstream lines(file);
  lines << "a,b\n";
  for (int row = 0; row < 1000; ++row) lines << row << ",1\n";
  lines.close();
  CHECK(steps([&] { (void)read_csv(file); }) >= 1000);
  write(folder, "file", bytes_of_hex(stored().at("npz")[0].at("hex")));
  CHECK(steps([&] { (void)read_npz(file); }) >= 1);
  write(folder, "file", idx_bytes(8, {3}, {1, 2, 3}));
  CHECK(steps([&] { (void)read_idx(file); }) >= 1);
}

}  // namespace
}  // namespace lockstep::data
