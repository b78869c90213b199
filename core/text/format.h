#pragma once
/// How values of the library become text: a type has a to_string(value), and with it a place in
/// fmt's formats and in streams.

#include <fmt/core.h>

#include <iosfwd>
#include <string>
#include <string_view>

namespace lockstep {

/// The base of a type's fmt::formatter: "{}" is to_string(value).
struct TextFormatter {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class T>
  auto format(const T& value, fmt::format_context& context) const {
    return fmt::format_to(context.out(), "{}", to_string(value));
  }
};

std::ostream& write_text(std::ostream& out, std::string_view text);

/// std::cout << value.
template <class T>
auto operator<<(std::ostream& out, const T& value) -> decltype(write_text(out, to_string(value))) {
  return write_text(out, to_string(value));
}

}  // namespace lockstep
