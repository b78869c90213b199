#include "lockstep/dist/transport/tcp/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep::dist {
namespace {

using Table = std::array<std::uint32_t, 256>;

/// The register after one more zero byte. Everything here is linear in the register's bits.
constexpr std::uint32_t after_zero_byte(std::uint32_t state) {
  constexpr std::uint32_t polynomial = 0x82f63b78;  // its bits in reverse order
  for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? polynomial : 0);
  return state;
}

/// tables[k][b]: what byte b adds to the register once k more bytes have followed it.
constexpr std::array<Table, 8> byte_tables = [] {
  std::array<Table, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    tables[0][b] = after_zero_byte(b);
    for (std::size_t k = 1; k < 8; ++k) tables[k][b] = after_zero_byte(tables[k - 1][b]);
  }
  return tables;
}();

std::uint64_t word_at(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Eight bytes at a time ("slicing by 8"); words are little-endian, as on all machines we run on.
std::uint32_t run_tables(std::uint32_t state, const std::byte* at, std::size_t count) {
  for (; count >= 8; at += 8, count -= 8) {
    const std::uint64_t word = word_at(at) ^ state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= byte_tables[7 - k][word >> (8 * k) & 0xff];
  }
  for (; count > 0; ++at, --count)
    state = state >> 8 ^ byte_tables[0][(state ^ static_cast<std::uint32_t>(*at)) & 0xff];
  return state;
}

#if defined(__x86_64__)

// The instruction gives its result after three cycles, but can begin another one in each cycle.
// Therefore three blocks are summed at once. To join them, a sum is moved on past the zeros of a
// block:
//
//   | block 0 | block 1 | block 2 |      moved(moved(sum 0) ^ sum 1) ^ sum 2
constexpr std::size_t block_bytes = 1024;

/// moving_tables[k][b]: where byte k of a register leads, if it is b, past a block of zeros.
constexpr std::array<Table, 4> moving_tables = [] {
  std::array<Table, 4> tables{};
  for (std::uint32_t bit = 0; bit < 32; ++bit) {
    std::uint32_t moved = std::uint32_t{1} << bit;
    for (std::size_t k = 0; k < block_bytes; ++k) moved = moved >> 8 ^ byte_tables[0][moved & 0xff];
    for (std::uint32_t b = 0; b < 256; ++b)
      if (b >> bit % 8 & 1) tables[bit / 8][b] ^= moved;
  }
  return tables;
}();

std::uint32_t move_past_block(std::uint32_t state) {
  return moving_tables[0][state & 0xff] ^ moving_tables[1][state >> 8 & 0xff] ^
         moving_tables[2][state >> 16 & 0xff] ^ moving_tables[3][state >> 24];
}

__attribute__((target("sse4.2"))) std::uint32_t run_instruction(std::uint32_t state,
                                                                const std::byte* at,
                                                                std::size_t count) {
  for (; count >= 3 * block_bytes; at += 3 * block_bytes, count -= 3 * block_bytes) {
    std::uint64_t first = state, second = 0, third = 0;
    for (std::size_t k = 0; k < block_bytes; k += 8) {
      first = _mm_crc32_u64(first, word_at(at + k));
      second = _mm_crc32_u64(second, word_at(at + block_bytes + k));
      third = _mm_crc32_u64(third, word_at(at + 2 * block_bytes + k));
    }
    state = move_past_block(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    state = move_past_block(state) ^ static_cast<std::uint32_t>(third);
  }
  std::uint64_t wide = state;
  for (; count >= 8; at += 8, count -= 8) wide = _mm_crc32_u64(wide, word_at(at));
  state = static_cast<std::uint32_t>(wide);
  for (; count > 0; ++at, --count) state = _mm_crc32_u8(state, static_cast<unsigned char>(*at));
  return state;
}

const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;

#else

constexpr bool has_instruction = false;
std::uint32_t run_instruction(std::uint32_t state, const std::byte*, std::size_t) { return state; }

#endif

}  // namespace

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before) {
  return ~run_tables(~before, bytes.data(), bytes.size());
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  if (!has_instruction) return crc32c_by_tables(bytes, before);
  return ~run_instruction(~before, bytes.data(), bytes.size());
}

}  // namespace lockstep::dist
