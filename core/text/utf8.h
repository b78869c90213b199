#pragma once
/// UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing beyond U+10FFFF.
///
/// Names that go into files which other programs read (safetensors, TensorBoard's events, JSON) are
/// UTF-8: one name that is not would make the whole file unreadable there.

#include <cstddef>
#include <string_view>

namespace lockstep {

/// How many bytes the first character of `text` has; 0 if the text is empty, or begins with no
/// character of UTF-8.
constexpr std::size_t utf8_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (bytes == 0 || first > 0xf4 || text.size() < bytes) return 0;
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < bytes; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return bytes;
}

constexpr bool is_utf8(std::string_view text) {
  while (const std::size_t bytes = utf8_bytes(text)) text.remove_prefix(bytes);
  return text.empty();
}

}  // namespace lockstep
