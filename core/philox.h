#pragma once
/// Philox4x32-10, a random number generator without a state to step (Salmon, Moraes, Dror & Shaw,
/// "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3): a bijection turns a counter
/// of 128 bits into 128 random bits under a key of 64. The numbers follow from the counter, so a
/// million threads draw from one stream without talking to each other.
///
///   key      the seed
///   counter  [ offset / 4 + round : 64 bits | subsequence : 64 bits ]
///
/// This division is cuRAND's, as is the meaning of an offset: the number of 32-bit outputs that
/// every subsequence has given before, always a multiple of 4. Which subsequence and round an
/// element of a dropout takes its number from is PyTorch's choice on a GPU of 132 multiprocessors
/// (an H100 or H200), where its kernels run with 132 * 2048 threads, one subsequence each: a block
/// of 4 decides over 4 neighbouring elements,
///
///   element i = output + 4 * (j + threads * round), j < threads
///
/// So on every device masks are those of PyTorch there, for numbers of elements that 4 divides; for
/// others it has other layouts.

#include <cstdint>

#include "lockstep/core/compiler.h"

namespace lockstep {

/// The threads of PyTorch's kernel, above. A multiple of every number of elements that one of ours
/// moves at a time.
inline constexpr std::int64_t philox_threads = 132 * 2048;

/// Where a stream stands.
struct PhiloxState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

/// A counter, or the four outputs made of it.
struct PhiloxBlock {
  std::uint32_t words[4];
};

/// Ten rounds of the bijection. Multipliers and key increments are those of the paper's table 2 and
/// section 3.
LOCKSTEP_HOST_DEVICE inline PhiloxBlock philox4x32_10(PhiloxBlock counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t a = counter.words[0], b = counter.words[1];
  std::uint32_t c = counter.words[2], d = counter.words[3];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t from_a = std::uint64_t{0xd2511f53} * a;
    const std::uint64_t from_c = std::uint64_t{0xcd9e8d57} * c;
    a = static_cast<std::uint32_t>(from_c >> 32) ^ b ^ key0;
    b = static_cast<std::uint32_t>(from_c);
    c = static_cast<std::uint32_t>(from_a >> 32) ^ d ^ key1;
    d = static_cast<std::uint32_t>(from_a);
    key0 += 0x9e3779b9;  // the golden ratio's fraction
    key1 += 0xbb67ae85;  // that of the square root of 3
  }
  return {{a, b, c, d}};
}

/// The outputs of a subsequence in a round.
LOCKSTEP_HOST_DEVICE inline PhiloxBlock philox_block(const PhiloxState& state, std::int64_t round,
                                                     std::int64_t subsequence) {
  const std::uint64_t low = state.offset / 4 + static_cast<std::uint64_t>(round);
  const auto high = static_cast<std::uint64_t>(subsequence);
  return philox4x32_10({{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                         static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}},
                       state.seed);
}

/// Hands out pieces of a stream. The same pieces as PyTorch's CUDA generator for the same seed and
/// the same calls. No thread-safety.
class PhiloxGenerator {
 public:
  explicit PhiloxGenerator(std::uint64_t seed) : state_{seed, 0} {}

  void manual_seed(std::uint64_t seed) { state_ = {seed, 0}; }
  const PhiloxState& state() const { return state_; }
  void set_state(const PhiloxState& state) { state_ = state; }

  /// Where to draw numbers for `elements` from, of which a block serves 4. What follows is drawn
  /// after them; 0 elements take nothing.
  PhiloxState reserve(std::int64_t elements) {
    const PhiloxState here = state_;
    constexpr std::int64_t per_round = philox_threads * 4;
    state_.offset += 4 * static_cast<std::uint64_t>((elements + per_round - 1) / per_round);
    return here;
  }

 private:
  PhiloxState state_;
};

}  // namespace lockstep
