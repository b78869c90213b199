#pragma once
/// Numbers of other people's files and command lines. May be called by any thread.

#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

namespace lockstep {

/// The number that is the whole of `text`; nothing if it is anything else.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end ? std::optional(value) : std::nullopt;
}

/// The f64 that is nearest to the decimal number "-1.5e3", which is the whole text: 0 (with its
/// sign) for one that is too small for any other, infinity for one that is too large. Nothing for
/// any other text: also for "inf", "nan" and 0x10.
std::optional<double> parse_decimal(std::string_view text);

/// A stream that reads the words and numbers of `text` as C does. Others do it as the program's
/// std::locale::global() says, which may take a blank for a part of a number.
std::istringstream classic_stream(std::string_view text);

}  // namespace lockstep
