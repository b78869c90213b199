#include "lockstep/data/idx.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

constexpr std::size_t max_dimensions = 4;

DType dtype_of_code(const std::string& name, unsigned code) {
  switch (code) {
    case 0x08: return DType::u8;
    case 0x0C: return DType::i32;
    case 0x0D: return DType::f32;
    case 0x0E: return DType::f64;
    case 0x09: fail<DataError>("[idx] {}: elements of type i8 (0x09) are not supported", name);
    case 0x0B: fail<DataError>("[idx] {}: elements of type i16 (0x0b) are not supported", name);
    default: fail<DataError>("[idx] {}: unknown element type 0x{:02x}", name, code);
  }
}

// From big-endian to this machine's order, or back: numbers of `size` bytes each.
void swap_order(std::span<std::byte> bytes, std::size_t size) {
  if constexpr (std::endian::native == std::endian::little)
    for (std::size_t i = 0; size > 1 && i < bytes.size(); i += size)
      std::ranges::reverse(bytes.subspan(i, size));
}

// The next big-endian numbers of four bytes.
void read_numbers(Input& input, std::span<std::uint32_t> numbers, std::string_view what) {
  const auto bytes = std::as_writable_bytes(numbers);
  input.read(bytes, what);
  swap_order(bytes, sizeof(std::uint32_t));
}

}  // namespace

Tensor read_idx(const std::string& path) {
  Input input(path);
  const std::string& name = input.name();

  std::uint32_t magic;
  read_numbers(input, {&magic, 1}, "the magic number");
  check<DataError>(magic >> 16 == 0, "[idx] {}: not an IDX file: begins with 0x{:08x}", name,
                   magic);
  const DType dtype = dtype_of_code(name, magic >> 8 & 0xff);
  const std::size_t dimensions = magic & 0xff;
  check<DataError>(1 <= dimensions && dimensions <= max_dimensions,
                   "[idx] {}: {} dimensions; 1 to {} are supported", name, dimensions,
                   max_dimensions);

  std::vector<std::uint32_t> header(dimensions);
  read_numbers(input, header, "the sizes");
  const std::vector<std::int64_t> sizes(header.begin(), header.end());
  const Tensor result = input.read_elements(sizes, dtype);
  input.expect_end();
  swap_order({result.raw(), result.bytes()}, size_of(dtype));
  return result;
}

}  // namespace lockstep::data
