#include "lockstep/data/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are read as they lie there");

constexpr std::int64_t max_elements = std::int64_t{1} << 59;  // their bytes still fit an i64

struct ArrayHeader {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// The literal of a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(const std::string& file, std::string_view text) : file_(file), text_(text) {}

  ArrayHeader parse() {
    ArrayHeader header;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !header.descr)
        header.descr = descr();
      else if (key == "fortran_order" && !header.fortran_order)
        header.fortran_order = boolean();
      else if (key == "shape" && !header.shape)
        header.shape = sizes();
      else
        bad(fmt::format("key '{}'", printable(key)));
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!rest().empty()) bad("text behind the dictionary");
    if (!header.descr || !header.fortran_order || !header.shape)
      bad("no descr, no fortran_order or no shape");
    return header;
  }

 private:
  [[noreturn]] void bad(const std::string& what) const {
    fail<DataError>("[npy] {}: its header is damaged: {} at '{}'", file_, what, printable(text_));
  }
  std::string_view rest() {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \n"), text_.size()));
    return text_;
  }
  bool accept(std::string_view word) {
    if (!rest().starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  bool accept(char c) { return accept(std::string_view(&c, 1)); }
  void expect(char c) {
    if (!accept(c)) bad(fmt::format("no '{}'", c));
  }
  std::string string() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const std::size_t end = text_.find(quote);
    if (end == text_.npos) bad("a string without an end");
    const std::string result(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return result;
  }
  std::string descr() {
    check<DataError>(!rest().starts_with('['), "[npy] {}: structured arrays are not supported",
                     file_);
    return string();
  }
  bool boolean() {
    if (accept("True")) return true;
    if (!accept("False")) bad("neither True nor False");
    return false;
  }
  std::vector<std::int64_t> sizes() {
    std::vector<std::int64_t> result;
    expect('(');
    while (!accept(')')) {
      std::int64_t size = -1;
      rest();
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) bad("no size");
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      result.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return result;
  }

  const std::string& file_;
  std::string_view text_;
};

ArrayHeader read_header(const detail::ByteSource& source) {
  constexpr std::string_view magic = "\x93NUMPY";
  constexpr std::uint32_t most = 1 << 20;  // NumPy itself reads no more than 10,000
  std::array<std::byte, 8> begin;
  source.read(begin, "the magic string");
  check<DataError>(std::memcmp(begin.data(), magic.data(), magic.size()) == 0,
                   "[npy] {}: not an .npy file: it does not begin with \\x93NUMPY", source.name);
  const auto version = std::to_integer<int>(begin[6]);
  check<DataError>(1 <= version && version <= 3 && begin[7] == std::byte{0},
                   "[npy] {}: version {}.{} of the format is none of 1.0, 2.0 and 3.0", source.name,
                   version, std::to_integer<int>(begin[7]));
  std::array<std::byte, 4> length{};
  source.read(std::span(length).first(version == 1 ? 2 : 4), "the header's length");
  const auto bytes = std::bit_cast<std::uint32_t>(length);
  check<DataError>(bytes <= most, "[npy] {}: a header of {} bytes is too long: at most {}",
                   source.name, bytes, most);
  std::string text(bytes, ' ');
  source.read(std::as_writable_bytes(std::span(text)), "the header");
  return HeaderParser(source.name, text).parse();
}

DType dtype_of_descr(const std::string& name, std::string_view descr) {
  constexpr std::array<std::pair<std::string_view, DType>, 7> known = {{{"f2", DType::f16},
                                                                        {"f4", DType::f32},
                                                                        {"f8", DType::f64},
                                                                        {"i4", DType::i32},
                                                                        {"i8", DType::i64},
                                                                        {"u1", DType::u8},
                                                                        {"b1", DType::u8}}};
  const std::string_view type = descr.substr(std::min<std::size_t>(descr.size(), 1));
  check<DataError>(!descr.starts_with('>') || type == "u1" || type == "b1",
                   "[npy] {}: big-endian elements ({}) are not supported", name, printable(descr));
  for (const auto& [text, dtype] : known)
    if (type == text && std::string_view("<|=>").find(descr[0]) != std::string_view::npos)
      return dtype;
  check<DataError>(!descr.ends_with('O'), "[npy] {}: it holds Python objects ({})", name,
                   printable(descr));
  fail<DataError>(
      "[npy] {}: elements of type {} are not supported; f2, f4, f8, i4, i8, u1 and b1 "
      "are",
      name, printable(descr));
}

Shape shape_of(const std::string& name, const std::vector<std::int64_t>& sizes) {
  check<DataError>(sizes.size() <= Shape::max_rank,
                   "[npy] {}: {} dimensions; at most {} are supported", name, sizes.size(),
                   Shape::max_rank);
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) {
    check<DataError>(size == 0 || elements <= max_elements / size,
                     "[npy] {}: {} elements times a size of {} are too many", name, elements, size);
    elements *= size;
  }
  return Shape(std::span<const std::int64_t>(sizes));
}

// The same array row by row, where `columns` holds it with the first index running fastest.
Tensor row_major(const Tensor& columns) {
  const Shape& shape = columns.shape();
  const Tensor result = Tensor::empty(shape, columns.dtype());
  const std::size_t size = size_of(columns.dtype());
  std::array<std::int64_t, Shape::max_rank> stride{}, at{};
  std::int64_t product = 1;
  for (int d = 0; d < shape.rank(); ++d) {
    stride[static_cast<std::size_t>(d)] = product;
    product *= shape[d];
  }
  std::int64_t from = 0;
  for (std::int64_t to = 0; to < shape.numel(); ++to) {
    std::memcpy(result.raw() + static_cast<std::size_t>(to) * size,
                columns.raw() + static_cast<std::size_t>(from) * size, size);
    for (int d = shape.rank() - 1; d >= 0; --d) {  // the next index: the last one runs fastest
      const auto i = static_cast<std::size_t>(d);
      from += stride[i];
      if (++at[i] < shape[d]) break;
      from -= stride[i] * shape[d];
      at[i] = 0;
    }
  }
  return result;
}

}  // namespace

Tensor detail::read_array(const ByteSource& source) {
  const ArrayHeader header = read_header(source);
  const DType dtype = dtype_of_descr(source.name, *header.descr);
  const Shape shape = shape_of(source.name, *header.shape);
  const std::uint64_t bytes = static_cast<std::uint64_t>(shape.numel()) * size_of(dtype);
  check<DataError>(
      bytes <= source.max_bytes,
      "[npy] {}: truncated: {} elements of shape {} take {} bytes, it holds at most {}",
      source.name, dtype, shape, bytes, source.max_bytes);
  const bool turn = *header.fortran_order && shape.rank() > 1;
  check_memory(fmt::format("[npy] {}: {} elements of shape {}", source.name, dtype, shape),
               turn ? 2 * bytes : bytes);
  const Tensor read = Tensor::empty(shape, dtype);
  source.read({read.raw(), read.bytes()}, "the elements");
  if (header.descr->ends_with("b1"))
    for (std::uint8_t& element : read.span<std::uint8_t>()) element = element != 0;
  return turn ? row_major(read) : read;
}

Tensor read_npy(const std::string& path) {
  Input input(path);
  const Tensor result = detail::read_array(
      {input.name(), input.max_bytes(),
       [&](std::span<std::byte> out, std::string_view what) { input.read(out, what); }});
  input.expect_end();
  return result;
}

}  // namespace lockstep::data
