#include "lockstep/core/text/number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <locale>
#include <string>
#include <system_error>

namespace lockstep {
namespace {

// Whether a number that no f64 is close to, is too large: the power of ten of its first digit that
// is not 0, which is far from 0, says it.
bool is_large(std::string_view text) {
  const std::size_t e = std::min(text.find_first_of("eE"), text.size());
  const std::string_view digits = text.substr(0, e);
  const std::size_t point = std::min(digits.find('.'), digits.size());
  const std::size_t first = std::min(digits.find_first_of("123456789"), digits.size());
  const std::int64_t place = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first);
  if (e == text.size()) return place > 0;
  std::string_view exponent = text.substr(e + 1);
  const bool negative = exponent.starts_with('-');
  if (negative || exponent.starts_with('+')) exponent.remove_prefix(1);
  std::int64_t power = 0;
  const auto read = std::from_chars(exponent.data(), exponent.data() + exponent.size(), power);
  if (read.ec != std::errc() || power > std::numeric_limits<std::int64_t>::max() / 2)
    return !negative;  // no text is as long
  return place + (negative ? -power : power) > 0;
}

}  // namespace

std::optional<double> parse_decimal(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (stop != end || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc()) return std::isfinite(value) ? std::optional(value) : std::nullopt;
  value = is_large(text) ? std::numeric_limits<double>::infinity() : 0;
  return text.starts_with('-') ? -value : value;
}

std::istringstream classic_stream(std::string_view text) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  return stream;
}

}  // namespace lockstep
