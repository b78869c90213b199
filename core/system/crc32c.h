#pragma once
/// CRC-32C (Castagnoli), a checksum of bytes against damage: RFC 3720, section 12.1; its appendix
/// B.4 has examples. Not for secrets.

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Of each byte, what it makes of a remainder of 0. The polynomial's bits are in reverse order: the
/// lowest bit of a byte comes first.
inline constexpr std::array<std::uint32_t, 256> crc32c_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0x82f63b78u : 0);
    table[byte] = rest;
  }
  return table;
}();

constexpr std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = 0xffffffffu;
  for (const char c : bytes)
    rest = rest >> 8 ^ crc32c_table[(rest ^ static_cast<unsigned char>(c)) & 0xff];
  return ~rest;
}

}  // namespace lockstep
