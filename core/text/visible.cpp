#include <algorithm>
#include <cstddef>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/text/utf8.h"

namespace lockstep {
namespace {

// How many bytes the character that the text begins with has, if a terminal only shows it; else 0.
std::size_t shown(std::string_view text) {
  const std::size_t bytes = utf8_bytes(text);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const bool c0 = bytes == 1 && (byte(0) < ' ' || byte(0) == 0x7f);
  const bool c1 = bytes == 2 && byte(0) == 0xc2 && byte(1) < 0xa0;
  return c0 || c1 ? 0 : bytes;
}

}  // namespace

std::string visible(std::string text) {
  const auto plain = [](char c) { return c >= ' ' && c != 0x7f; };
  if (std::ranges::all_of(text, plain)) return text;
  std::string result;
  for (std::string_view rest = text; !rest.empty();) {
    if (const std::size_t bytes = shown(rest)) {
      result += rest.substr(0, bytes);
      rest.remove_prefix(bytes);
      continue;
    }
    const char c = rest[0];
    result += c == '\n'   ? "\\n"
              : c == '\t' ? "\\t"
              : c == '\r' ? "\\r"
                          : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    rest.remove_prefix(1);
  }
  return result;
}

}  // namespace lockstep
