#include "lockstep/data/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are read as they lie there");

struct ArrayHeader {
  std::string descr;
  bool fortran_order;
  std::vector<std::int64_t> shape;
};

// The names of a structured array's fields may hold quotes and bytes that are no JSON.
bool is_structured(std::string_view text) {
  constexpr std::string_view key = "descr";
  const std::size_t at = text.find(key);
  if (at == text.npos) return false;
  const std::size_t value = text.find_first_not_of("'\" :", at + key.size());
  return value != text.npos && text[value] == '[';
}

// The literal of a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
ArrayHeader parse_header(const std::string& file, const std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> json_of_python[] = {
      {"'", "\""}, {"(", "["},   {")", "]"},  {"True", "true"}, {"False", "false"},
      {",]", "]"}, {", ]", "]"}, {",}", "}"}, {", }", "}"}};
  std::string json = text;
  // Python 2 wrote long integers, 3L.
  for (std::size_t i = 1; i < json.size(); ++i)
    if (json[i] == 'L' && std::isdigit(static_cast<unsigned char>(json[i - 1])) &&
        json.find_first_of(",)", i) == json.find_first_not_of(' ', i + 1))
      json[i] = ' ';
  for (const auto& [python, other] : json_of_python)
    for (auto at = json.find(python); at != std::string::npos;
         at = json.find(python, at + other.size()))
      json.replace(at, python.size(), other);

  using Json = nlohmann::json;
  try {
    const Json parsed = is_structured(text) ? Json{{"descr", Json::array()}} : Json::parse(json);
    const Json& descr = parsed.at("descr");
    check<UnsupportedError>(!descr.is_array(), "[npy] {}: structured arrays are not supported",
                            file);
    ArrayHeader header{.descr = descr.get_ref<const std::string&>(),
                       .fortran_order = parsed.at("fortran_order").get_ref<const bool&>(),
                       .shape = {}};
    for (const Json& size : parsed.at("shape").get_ref<const Json::array_t&>())
      header.shape.push_back(
          static_cast<std::int64_t>(size.get_ref<const Json::number_unsigned_t&>()));
    return header;
  } catch (const Json::exception&) {
    fail<DataError>("[npy] {}: its header is damaged: {}", file, printable(text, 200));
  }
}

// What does not begin so is something else; what ends before it has done so is damaged.
void read_begin(ByteSource& source, std::span<std::byte> begin, std::string_view magic) {
  std::size_t there = 0;
  while (there < begin.size()) {
    const std::size_t got = source.read_some(begin.subspan(there));
    check<UnsupportedError>(
        (there > 0 || got > 0) && std::memcmp(begin.data(), magic.data(), there + got) == 0,
        "[npy] {}: not an .npy file: it {}", source.name(),
        there + got == 0 ? "is empty" : "does not begin with \\x93NUMPY");
    check<DataError>(got > 0, "[npy] {}: truncated: {} of {} bytes of the magic string",
                     source.name(), there, begin.size());
    there += got;
  }
}

ArrayHeader read_header(ByteSource& source) {
  constexpr std::string_view magic = "\x93NUMPY";
  constexpr std::uint32_t most = 10000;  // bytes, as in NumPy
  std::array<std::byte, 8> begin;
  read_begin(source, std::span(begin).first(magic.size()), magic);
  source.read(std::span(begin).subspan(magic.size()), "the version");
  const auto version = std::to_integer<int>(begin[6]);
  check<UnsupportedError>(1 <= version && version <= 3 && begin[7] == std::byte{0},
                          "[npy] {}: version {}.{} of the format is none of 1.0, 2.0 and 3.0",
                          source.name(), version, std::to_integer<int>(begin[7]));
  std::array<std::byte, 4> length{};
  source.read(std::span(length).first(version == 1 ? 2 : 4), "the header's length");
  const auto bytes = std::bit_cast<std::uint32_t>(length);
  check<UnsupportedError>(bytes <= most, "[npy] {}: a header of {} bytes is too long: at most {}",
                          source.name(), bytes, most);
  std::string text(bytes, ' ');
  source.read(std::as_writable_bytes(std::span(text)), "the header");
  return parse_header(source.name(), text);
}

DType dtype_of_descr(const std::string& name, std::string_view descr) {
  constexpr std::pair<std::string_view, DType> known[] = {
      {"f2", DType::f16}, {"f4", DType::f32}, {"f8", DType::f64}, {"i4", DType::i32},
      {"i8", DType::i64}, {"u1", DType::u8},  {"b1", DType::u8}};
  const std::size_t order = !descr.empty() && std::strchr("<|=>", descr[0]) != nullptr ? 1 : 0;
  for (const auto& [type, dtype] : known)
    if (descr.substr(order) == type && (!descr.starts_with('>') || size_of(dtype) == 1))
      return dtype;
  check<UnsupportedError>(!descr.starts_with('>'),
                          "[npy] {}: big-endian elements ({}) are not supported", name,
                          printable(descr));
  check<UnsupportedError>(!descr.ends_with('O'), "[npy] {}: it holds Python objects ({})", name,
                          printable(descr));
  fail<UnsupportedError>(
      "[npy] {}: elements of type {} are not supported; f2, f4, f8, i4, i8, u1 and b1 "
      "are",
      name, printable(descr));
}

// The same array row by row, where `columns` holds it with the first index running fastest.
Tensor row_major(const std::string& name, const Tensor& columns) {
  const std::size_t size = size_of(columns.dtype());
  check_memory(fmt::format("[npy] {}: its elements in row-major order", name), columns.bytes());
  const Tensor result = Tensor::empty(columns.shape(), columns.dtype());
  for (std::int64_t from = 0; from < columns.numel(); ++from) {
    std::int64_t to = 0, rest = from;
    for (const std::int64_t length : columns.shape()) {
      to = to * length + rest % length;
      rest /= length;
    }
    std::memcpy(result.raw() + static_cast<std::size_t>(to) * size,
                columns.raw() + static_cast<std::size_t>(from) * size, size);
  }
  return result;
}

}  // namespace

Tensor read_array(ByteSource& source) {
  const ArrayHeader header = read_header(source);
  const DType dtype = dtype_of_descr(source.name(), header.descr);
  check<UnsupportedError>(header.shape.size() <= Shape::max_rank,
                          "[npy] {}: it has {} dimensions; at most {} are supported", source.name(),
                          header.shape.size(), Shape::max_rank);
  const Tensor read = source.read_elements(header.shape, dtype);
  source.expect_end();
  if (header.descr.ends_with("b1"))
    for (std::uint8_t& element : read.span<std::uint8_t>()) element = element != 0;
  return header.fortran_order ? row_major(source.name(), read) : read;
}

Tensor read_npy(const std::string& path) {
  Input input(path);
  return read_array(input);
}

}  // namespace lockstep::data
