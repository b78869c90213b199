#pragma once
/// Random numbers: the streams of PyTorch's CPU generator, so that the same seed gives the same
/// weights and the same order of samples here and there. uniform, randint and randperm agree bit
/// for bit; normal agrees to 1e-6 (PyTorch takes its logarithm and sine from vector polynomials)
/// and leaves the same state behind. Compared with PyTorch 2.15 (test/reference/make_generator.py).
///
/// Everything is made of the 32-bit outputs of MT19937 (Matsumoto and Nishimura, "Mersenne
/// Twister", ACM TOMACS 8(1), 1998). Below, r32 is its next output, and r64 is (first r32 << 32) |
/// second r32.
///
/// Replays of a recorded step (gpu/graph.h) draw nothing: what draws or seeds in one throws
/// StateError while it is recorded.
///
/// Thread-safety: none; each thread has its own default generator.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class Generator {
 public:
  /// What PyTorch seeds its default generator with.
  static constexpr std::uint64_t default_seed = 67280421310721;

  /// Begins the stream of `seed`.
  explicit Generator(std::uint64_t seed = default_seed) { begin(seed); }

  /// Starts the stream of `seed`, of which MT19937 takes the low 32 bits. Forgets a cached normal.
  void manual_seed(std::uint64_t seed);
  /// The seed as it was given last.
  std::uint64_t seed() const { return seed_; }

  /// Where the stream stands, for a checkpoint: i64 (628,), MT19937's words and what lies beside
  /// them. set_state throws UsageError for a tensor that is no such state.
  Tensor state() const;
  void set_state(const Tensor& state);

  /// Fills `out` (f32 or f64) with values of [from, to): fma(x, to - from, from) in the type of
  /// `out`, with x = (r32 mod 2^24) / 2^24 for f32 and x = (r64 mod 2^53) / 2^53 for f64. A value
  /// that rounds up to `to` becomes `from`. (The fused rounding is what PyTorch does on processors
  /// with AVX2 or AVX-512; on others it rounds the product as well, and its own bits differ.)
  /// Throws UsageError unless from <= to and to - from is finite in that type.
  void uniform(const Tensor& out, double from = 0, double to = 1);

  /// Fills `out` (f32 or f64) with normally distributed values (Box and Muller, "A note on the
  /// generation of random normal deviates", 1958), in one of two ways:
  /// - fewer than 16 elements: in f64, from two f64 uniforms u1, u2 on [0, 1), with
  ///   radius = sqrt(-2 log(1 - u2)) and angle = 2 pi u1: first radius cos(angle), then
  ///   radius sin(angle). The latter waits in the generator if `out` ends before it, also for a
  ///   later call.
  /// - 16 or more: `out` is filled with uniforms x of [0, 1), and each 16 of them are turned in
  ///   place: radius = sqrt(-2 log(1 - x[j])), angle = 2 pi x[j + 8]; j < 8 becomes radius
  ///   cos(angle), j + 8 becomes radius sin(angle). If the size is not a multiple of 16, the last
  ///   16 elements are drawn again, whole.
  /// Throws UsageError unless stddev >= 0.
  void normal(const Tensor& out, double mean = 0, double stddev = 1);

  /// Fills `out` (i64) with values of [low, high): low + r32 mod (high - low), or r64 instead of
  /// r32 from a range of 2^28 on, where the skew of the remainder would reach 5 %. Throws
  /// UsageError unless low < high.
  void randint(std::int64_t low, std::int64_t high, const Tensor& out);

  /// A permutation of 0 .. n-1, i64 of shape (n,). Fisher-Yates, forwards: for i = 0 .. n-2,
  /// element i changes places with element i + r32 mod (n - i). From n = (2^32 - 1) / 20 on, for
  /// the same reason as above, the inside-out variant with r64: for i = 0 .. n-1, z = r64 mod (i +
  /// 1), element z moves to i and i takes its place. (Durstenfeld, CACM algorithm 235, 1964.)
  /// Throws UsageError for a negative n.
  Tensor randperm(std::int64_t n);

  /// A generator whose seed is this one's next number.
  Generator split();

 private:
  void begin(std::uint64_t seed);
  std::uint32_t random32();
  void twist();
  std::uint64_t random64();
  template <class T>
  T unit();  // the x of `uniform`
  double small_normal();
  template <class T>
  void large_normal(std::span<T> out, T mean, T stddev);

  // MT19937's. <random> has one, too, and takes a tenth of the time in which a program compiles.
  static constexpr std::int64_t words = 624;
  std::array<std::uint32_t, words> state_;
  std::size_t next_ = 0;  // the element of the next output
  std::uint64_t seed_ = 0;
  std::optional<double> cached_normal_;
};

/// The calling thread's generator: the one that initializes layers. Ranks may be threads, so it is
/// not shared.
Generator& default_generator();

/// The calling thread's counter-based generator: the one that dropout draws from, on every device.
PhiloxGenerator& default_philox();

/// Seeds both of the calling thread's generators.
void manual_seed(std::uint64_t seed);

}  // namespace lockstep
