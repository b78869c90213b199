#include "lockstep/tools/hash_trace/elements.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "lockstep/core/dtype.h"

namespace lockstep::hashes {
namespace {

std::optional<DType> dtype_named(const std::string& name) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::i64, DType::i32, DType::u8, DType::f16, DType::bf16})
    if (name_of(dtype) == name) return dtype;
  return {};
}

// The bits of element i, whose bytes are given from the lowest on.
std::uint64_t bits_of(const Elements& elements, std::size_t size, std::int64_t i) {
  std::uint64_t bits = 0;
  const char* const at = elements.hex.data() + static_cast<std::size_t>(i) * size * 2;
  for (std::size_t k = size; k-- > 0;) {
    unsigned byte = 0;
    std::from_chars(at + 2 * k, at + 2 * k + 2, byte, 16);
    bits = bits << 8 | byte;
  }
  return bits;
}

// Calls f with the element of these bits, in its C++ type.
template <class F>
auto with_element(DType dtype, std::uint64_t bits, const F& f) {
  return visit_any(dtype, [&](auto element) {
    std::memcpy(&element, &bits, sizeof element);
    return f(element);
  });
}

double floating(DType dtype, std::uint64_t bits) {
  return with_element(dtype, bits, [](auto element) { return static_cast<double>(element); });
}

std::string value_of(DType dtype, std::uint64_t bits) {
  return with_element(dtype, bits, [](auto element) {
    if constexpr (is_16_bit(dtype_of<decltype(element)>()))
      return fmt::format("{}", static_cast<double>(element));
    else
      return fmt::format("{}", element);
  });
}

// A number that counts the values of a dtype in their order; 0 and -0 are the same.
std::int64_t place_of(std::uint64_t bits, std::size_t size) {
  const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return bits & sign ? -magnitude : magnitude;
}

std::string distance(DType dtype, std::uint64_t a, std::uint64_t b) {
  if (!is_any_floating(dtype)) return "";
  const double x = floating(dtype, a), y = floating(dtype, b);
  if (x != x || y != y) return x != x && y != y ? "two NaNs, with other bits" : "";
  const std::size_t size = size_of(dtype);
  const auto p = static_cast<std::uint64_t>(place_of(a, size));
  const auto q = static_cast<std::uint64_t>(place_of(b, size));
  if (p == q) return "the sign of 0";
  const auto apart = place_of(a, size) < place_of(b, size) ? q - p : p - q;
  return fmt::format("{} ulp{} apart", apart, apart == 1 ? "" : "s");
}

std::vector<std::int64_t> index_of(std::int64_t i, const Shape& shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int k = shape.rank(); k-- > 0; i /= shape[k])
    index[static_cast<std::size_t>(k)] = i % shape[k];
  return index;
}

}  // namespace

std::string first_different_element(const Elements& a, const Elements& b, const std::string& name_a,
                                    const std::string& name_b) {
  const std::optional<DType> dtype = dtype_named(a.dtype);
  if (!dtype || a.dtype != b.dtype || a.shape != b.shape || a.hex.empty()) return "";
  const std::size_t size = size_of(*dtype);
  const std::int64_t elements = a.shape.numel();
  const auto digits = static_cast<std::size_t>(elements) * size * 2;
  if (a.hex.size() != digits || b.hex.size() != digits) return "";
  std::int64_t first = -1, different = 0;
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size * 2;
    if (a.hex.compare(at, size * 2, b.hex, at, size * 2) == 0) continue;
    if (different++ == 0) first = i;
  }
  if (different == 0) return "";
  const std::uint64_t x = bits_of(a, size, first), y = bits_of(b, size, first);
  const std::string u = value_of(*dtype, x), v = value_of(*dtype, y),
                    apart = distance(*dtype, x, y);
  const std::size_t names = std::max(name_a.size(), name_b.size());
  const std::size_t width = std::max(u.size(), v.size());
  return fmt::format(
      "  at [{}]{}{}; {} of {} elements differ{}\n"
      "    {:<{}}  {:>{}}  0x{:0{}x}\n"
      "    {:<{}}  {:>{}}  0x{:0{}x}\n",
      fmt::join(index_of(first, a.shape), ", "), apart.empty() ? "" : ": ", apart, different,
      elements, different == 1 ? "s" : "", name_a, names, u, width, x, 2 * size, name_b, names, v,
      width, y, 2 * size);
}

}  // namespace lockstep::hashes
