#include "lockstep/data/idx.h"

#include <algorithm>
#include <array>
#include <bit>

#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

constexpr int max_dimensions = 4;
constexpr std::int64_t max_elements = std::int64_t{1} << 59;  // their bytes still fit an i64

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

std::int64_t big_endian(std::span<const std::byte, 4> bytes) {
  std::int64_t value = 0;
  for (std::byte byte : bytes) value = value << 8 | std::to_integer<std::int64_t>(byte);
  return value;
}

// The elements of `tensor`, as they were read, from big-endian to this machine's order.
void to_native_order(const Tensor& tensor) {
  if constexpr (std::endian::native == std::endian::little) {
    const std::size_t size = size_of(tensor.dtype());
    const std::span<std::byte> bytes(tensor.raw(), tensor.bytes());
    if (size > 1)
      for (std::size_t i = 0; i < bytes.size(); i += size)
        std::ranges::reverse(bytes.subspan(i, size));
  }
}

}  // namespace

Tensor read_idx(const std::string& path) {
  Input input(path);
  const std::string& name = input.name();

  std::array<std::byte, 4> magic;
  input.read(magic, "the magic number");
  const auto number = static_cast<std::uint32_t>(big_endian(magic));
  check<DataError>(number >> 16 == 0, "[idx] {}: not an IDX file: begins with 0x{:08x}", name,
                   number);
  const DType dtype = dtype_of_code(name, number >> 8 & 0xff);
  const std::size_t dimensions = number & 0xff;
  check<DataError>(1 <= dimensions && dimensions <= max_dimensions,
                   "[idx] {}: {} dimensions; 1 to {} are supported", name, dimensions,
                   max_dimensions);

  std::array<std::byte, 4 * max_dimensions> header;
  const auto size_bytes = std::span(header).first(4 * dimensions);
  input.read(size_bytes, "the sizes");
  std::array<std::int64_t, max_dimensions> sizes{};
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    sizes[i] = big_endian(size_bytes.subspan(4 * i).first<4>());
    check<DataError>(sizes[i] == 0 || elements <= max_elements / sizes[i],
                     "[idx] {}: {} elements times a size of {} are too many", name, elements,
                     sizes[i]);
    elements *= sizes[i];
  }
  const Shape shape(std::span<const std::int64_t>(sizes.data(), dimensions));
  const std::uint64_t bytes = static_cast<std::uint64_t>(elements) * size_of(dtype);
  check<DataError>(
      bytes <= input.max_bytes(),
      "[idx] {}: truncated: {} elements of shape {} take {} bytes, it holds at most {}", name,
      dtype, shape, bytes, input.max_bytes());

  check_memory(fmt::format("[idx] {}: {} elements of shape {}", name, dtype, shape), bytes);
  Tensor result = Tensor::empty(shape, dtype);
  input.read({result.raw(), result.bytes()}, "the elements");
  input.expect_end();
  to_native_order(result);
  return result;
}

}  // namespace lockstep::data
