#include "lockstep/dist/transport/tcp/frame_seal.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lockstep::dist {
namespace {

#if defined(__AVX2__)
struct SimdLanes {
  __m256i v = _mm256_setzero_si256();
  static constexpr std::size_t bytes = 32;
  static SimdLanes load(const std::byte* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
  }
  /// Adds the products of the pairs of m + k.
  void add(SimdLanes m, SimdLanes k) {
    const __m256i t = _mm256_add_epi32(m.v, k.v);
    v = _mm256_add_epi64(v, _mm256_mul_epu32(t, _mm256_srli_epi64(t, 32)));
  }
};
#elif defined(__SSE2__)
struct SimdLanes {
  __m128i v = _mm_setzero_si128();
  static constexpr std::size_t bytes = 16;
  static SimdLanes load(const std::byte* from) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))};
  }
  void add(SimdLanes m, SimdLanes k) {
    const __m128i t = _mm_add_epi32(m.v, k.v);
    v = _mm_add_epi64(v, _mm_mul_epu32(t, _mm_srli_epi64(t, 32)));
  }
};
#else
struct SimdLanes {
  std::array<std::uint32_t, 2> v{};
  static constexpr std::size_t bytes = 8;
  static SimdLanes load(const std::byte* from) {
    SimdLanes lanes;
    std::memcpy(&lanes.v, from, sizeof lanes.v);
    return lanes;
  }
  void add(SimdLanes m, SimdLanes k) {
    const std::uint32_t a = m.v[0] + k.v[0], b = m.v[1] + k.v[1];
    v = std::bit_cast<decltype(v)>(std::bit_cast<std::uint64_t>(v) + std::uint64_t{a} * b);
  }
};
#endif
static_assert(nh_step % SimdLanes::bytes == 0 && sizeof(SimdLanes) == SimdLanes::bytes);

std::uint64_t sum_of(const SimdLanes& lanes) {
  std::uint64_t sum = 0;
  for (const std::uint64_t lane :
       std::bit_cast<std::array<std::uint64_t, SimdLanes::bytes / sizeof(std::uint64_t)>>(lanes))
    sum += lane;
  return sum;
}

}  // namespace

NhSums nh(const NhKey& key, std::span<const std::byte> chunk) {
  SimdLanes first, second;
  for (std::size_t at = 0; at < chunk.size(); at += SimdLanes::bytes) {
    const SimdLanes bytes = SimdLanes::load(chunk.data() + at);
    first.add(bytes, SimdLanes::load(key.data() + at));
    second.add(bytes, SimdLanes::load(key.data() + at + nh_step));
  }
  return {sum_of(first), sum_of(second)};
}

void FrameSealer::begin(const Token& key, std::size_t length) {
  sealer_.begin(key);
  length_ = length;
  pending_ = 0;
}

void FrameSealer::add(std::span<const std::byte> bytes) {
  if (length_ <= short_bytes) return sealer_.add(bytes);
  if (pending_ > 0 || bytes.size() < nh_chunk) {
    const std::size_t count = std::min(bytes.size(), nh_chunk - pending_);
    if (count == 0) return;
    std::memcpy(chunk_.data() + pending_, bytes.data(), count);
    bytes = bytes.subspan(count);
    pending_ += count;
    if (pending_ < nh_chunk) return;
    pending_ = 0;
    shorten(chunk_);
    return add(bytes);
  }
  for (; bytes.size() >= nh_chunk; bytes = bytes.subspan(nh_chunk)) shorten(bytes.first(nh_chunk));
  add(bytes);
}

void FrameSealer::shorten(std::span<const std::byte> chunk) {
  const NhSums sums = nh(key_, chunk);
  sealer_.add(std::as_bytes(std::span(sums)));
}

Tag FrameSealer::tag() {
  if (length_ > short_bytes) {
    const std::size_t whole = (pending_ + nh_step - 1) / nh_step * nh_step;
    std::fill(chunk_.begin() + static_cast<std::ptrdiff_t>(pending_),
              chunk_.begin() + static_cast<std::ptrdiff_t>(whole), std::byte{0});
    if (whole > 0) shorten(std::span(chunk_).first(whole));
    sealer_.add(std::as_bytes(std::span(&length_, 1)));
  }
  return sealer_.tag();
}

}  // namespace lockstep::dist
