#pragma once
/// CRC32C (Castagnoli's polynomial; RFC 3720, section 12.1): notices every change of up to three
/// bits, and others with a chance of 1 in 4 billion to miss one. Not for secrets: who can change
/// the bytes can also make the sum right.
///
/// By the processor's instruction where it has one (SSE 4.2), else by tables: the same sums.
/// Thread-safety: may be called by any thread.

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::dist {

/// The sum of `bytes`, or with `before` that of the bytes before them and these:
/// crc32c(b, crc32c(a)) is the sum of a followed by b.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The same by tables, on any processor, at a tenth of the speed (2.4 instead of 27 GB/s where it
/// was measured).
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace lockstep::dist
