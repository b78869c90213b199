#pragma once
/// What a rank says about a collective before any data of it flows: the header of a stream. All
/// ranks must say the same, byte for byte; what differs is reported with both sides.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/dist/collectives/plan.h"

namespace lockstep::dist {

/// The place of a buffer in memory that communicators have allocated.
struct RegionPlace {
  std::int32_t region = -1;  ///< which allocate() it comes from; -1: none
  std::uint64_t offset = 0;  ///< bytes from the beginning
};

/// On the wire in the machine's own byte order: all ranks of a world share it, and a stranger's
/// magic number does not match.
struct CallHeader {
  static constexpr std::uint32_t expected_magic = 0x4b434f4c;  // "LOCK"
  static constexpr std::uint8_t expected_version = 1;
  static constexpr std::int32_t no_region = -1;

  std::uint32_t magic = expected_magic;
  std::uint8_t version = expected_version;
  Operation operation = Operation::barrier;
  Algorithm algorithm = Algorithm::direct;
  DType dtype = DType::f32;
  std::int32_t root = 0;
  std::int32_t region = no_region;  ///< which allocate() the tensor comes from
  std::uint64_t sequence = 0;       ///< number of the collective
  std::int64_t count = 0;           ///< elements
  std::uint64_t offset = 0;         ///< bytes from the beginning of the region
  std::uint64_t name_hash = 0;
  std::array<char, 16> name{};  ///< how the name begins, for people

  void set_name(std::string_view text);
};
static_assert(sizeof(CallHeader) == 64, "no padding, and one cache line");

/// How its name begins; a peer's may hold anything: what cannot be printed is a '?'.
std::string printable_name(const CallHeader& header);

/// "all_reduce #17 'bucket 0' of 1024 f32 (direct)"
std::string describe(const CallHeader& header);

/// Throws CommError naming both sides unless `theirs`, received from `peer`, equals `mine`.
void compare(const CallHeader& mine, const CallHeader& theirs, int peer);

}  // namespace lockstep::dist
