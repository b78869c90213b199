#pragma once
/// Names that go into files which other programs read (safetensors, TensorBoard's events, JSON) are
/// UTF-8: one name that is not would make the whole file unreadable there.

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

/// Whether `text` is UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing beyond
/// U+10FFFF.
constexpr bool is_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned first = byte(i), second = byte(i + 1);
    const std::size_t more = first < 0x80                    ? 0
                             : first >= 0xc2 && first < 0xe0 ? 1
                             : first >= 0xe0 && first < 0xf0 ? 2
                             : first >= 0xf0 && first < 0xf5 ? 3
                                                             : 4;
    if (more == 4) return false;
    const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (more > 0 && (second < least || second > most)) return false;
    for (std::size_t k = 2; k <= more; ++k)
      if (byte(i + k) < 0x80 || byte(i + k) > 0xbf) return false;
    i += more + 1;
  }
  return true;
}

/// `text` as a message may show it, whatever it holds: '?' for each byte that is not printable
/// ASCII.
inline std::string in_ascii(std::string_view text) {
  std::string shown(text);
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return shown;
}

}  // namespace lockstep
