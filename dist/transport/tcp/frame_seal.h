#pragma once
/// The tags of frames. That of a short frame is Poly1305's (rendezvous/seal.h). A long one is
/// shortened first, by NH of RFC 4418 (UMAC), because Poly1305 reads 7 GB/s where NH reads 35 (a
/// core of an EPYC, Zen 3), and a loopback moves about as much:
///
///   | 4 KiB | 4 KiB | ... | rest, zeros |     bytes of the frame
///      NH      NH             NH             with a secret key that a direction keeps
///   | 16 B  | 16 B  | ... |    16 B     | length u64 |  --Poly1305, the frame's key-->  tag
///
/// NH of a chunk is two sums, the second with the key moved on by 32 bytes, over its pairs of u32:
///
///   sum of (a + key of a mod 2^32) (b + key of b mod 2^32), mod 2^64
///
/// (in the machine's own byte order, as all numbers of a frame).
/// Two chunks have equal sums with a chance of 2^-64, if the key is secret (RFC 4418, 6.2). So an
/// attacker who changes a frame passes unnoticed with a chance below 2^-63, and has one try,
/// because a wrong tag ends the job.
///
/// Thread-safety: one thread at a time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/dist/rendezvous/seal.h"

namespace lockstep::dist {

constexpr std::size_t nh_chunk = 4096, nh_step = 32, nh_sums = 2;
using NhKey = std::array<std::byte, nh_chunk + (nh_sums - 1) * nh_step>;
using NhSums = std::array<std::uint64_t, nh_sums>;

/// Of a chunk whose size is a multiple of nh_step, at most nh_chunk.
NhSums nh(const NhKey& key, std::span<const std::byte> chunk);

/// Makes the tags of one direction of a connection.
class FrameSealer {
 public:
  static constexpr std::size_t short_bytes = 128;  ///< the longest frame that is not shortened

  explicit FrameSealer(const KeyStream& direction) { direction.fill(key_); }

  /// A frame of `length` bytes, which add() then gets, in any pieces.
  void begin(const Token& key, std::size_t length);
  void add(std::span<const std::byte> bytes);
  Tag tag();  ///< of the bytes, once all are there

  /// The tag of a whole frame.
  Tag seal(const Token& key, std::span<const std::byte> bytes) {
    begin(key, bytes.size());
    add(bytes);
    return tag();
  }

 private:
  void shorten(std::span<const std::byte> chunk);

  alignas(64) NhKey key_;
  Sealer sealer_;
  std::uint64_t length_ = 0;
  std::size_t pending_ = 0;  // bytes of the chunk that is not complete
  alignas(64) std::array<std::byte, nh_chunk> chunk_;
};

}  // namespace lockstep::dist
