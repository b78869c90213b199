#pragma once
/// What a rank says about a collective before any of its data flows. All ranks must say the same,
/// byte for byte; an error reports both sides.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/dist/collectives/operation.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

/// The place of a buffer in memory that communicators have allocated.
struct RegionPlace {
  static constexpr std::int32_t none = -1;
  std::int32_t region = none;  ///< which allocate() it comes from
  std::uint64_t offset = 0;    ///< bytes from the beginning
};

/// On the wire in the machine's own byte order, which all ranks of a world share. Elsewhere the
/// magic number does not match.
struct CallHeader {
  static constexpr std::uint32_t expected_magic = 0x4b434f4c;  // "LOCK"
  static constexpr std::uint8_t expected_version = 1;

  std::uint32_t magic = expected_magic;
  std::uint8_t version = expected_version;
  Operation operation = Operation::barrier;
  Algorithm algorithm = Algorithm::two_shot;
  DType dtype = DType::f32;
  std::int32_t root = 0;
  std::int32_t region = RegionPlace::none;  ///< which allocate() the tensor comes from
  std::uint64_t sequence = 0;               ///< number of the collective
  std::int64_t count = 0;                   ///< elements
  std::uint64_t offset = 0;                 ///< bytes from the beginning of the region
  std::uint64_t name_hash = 0;
  std::array<char, 16> name{};  ///< how the name begins, for people

  void set_name(std::string_view text);
  std::string printable_name() const { return text_of_peer({name.data(), name.size()}); }
};
static_assert(sizeof(CallHeader) == 64, "no padding, and one cache line");

/// "all_reduce #17 'bucket 0' of 1024 f32 (two-shot)"
std::string describe(const CallHeader& header);

/// Throws CommError naming both sides unless `theirs`, received from `peer`, equals `mine`.
void compare(const CallHeader& mine, const CallHeader& theirs, int peer);

}  // namespace lockstep::dist
