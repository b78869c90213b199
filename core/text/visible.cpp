#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<std::uint8_t>(text[i]);
}

// How many bytes the character that the text begins with has, if a terminal only shows it; else 0.
// The bounds of the second byte are those of UTF-8 (RFC 3629): none is longer than needed, and none
// a half of a pair. C1 control characters (0xc2 0x80 to 0xc2 0x9f) count as control characters.
std::size_t shown(std::string_view text) {
  const std::uint8_t first = byte_at(text, 0);
  if (first < 0x80) return first >= ' ' && first != 0x7f ? 1 : 0;
  const std::size_t bytes = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (bytes == 0 || first > 0xf4 || text.size() < bytes) return 0;
  const std::uint8_t least = first == 0xc2 || first == 0xe0 ? 0xa0
                             : first == 0xf0                ? 0x90
                                                            : 0x80,
                     most = first == 0xed   ? 0x9f
                            : first == 0xf4 ? 0x8f
                                            : 0xbf;
  if (byte_at(text, 1) < least || byte_at(text, 1) > most) return 0;
  for (std::size_t i = 2; i < bytes; ++i)
    if ((byte_at(text, i) & 0xc0) != 0x80) return 0;
  return bytes;
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
                          : fmt::format("\\x{:02x}", byte_at(rest, 0));
    rest.remove_prefix(1);
  }
  return result;
}

}  // namespace lockstep
