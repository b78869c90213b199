#pragma once
/// PTX's ldmatrix and mma, by the layouts that the PTX ISA gives for them, thread by thread: a
/// kernel that computes a wrong index gets a wrong result here too. Tables of the layouts:
/// kernels/cuda/native/device_intrinsics.h.
///
/// A tensor core computes products exactly and adds them up in a fixed-point number that it aligns
/// to the largest of them and then cuts off to f32 (Fasi, Higham, Mikaitis, Pranesh, "Numerical
/// Behavior of NVIDIA Tensor Cores", 2021). Here the sum is made in f64 and cut off: the same
/// direction of rounding, without the bits that a GPU may lose in aligning.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../cuda_bf16.h"
#include "../cuda_fp16.h"
#include "language.h"
#include "warp.h"

namespace simt::detail {

/// Of the running thread's block.
bool is_shared(const void* data, std::size_t bytes);
/// The running thread names a row of 16 bytes in shared memory that its warp will load (ldmatrix).
void matrix_row(const void* row, const void* caller);

/// As warp_collective, of all 32 threads of a warp: fails those that come if others have ended.
template <class In, class Out>
Out whole_warp(const char* name, const In& mine, Out (*all)(const std::array<In, 32>&, int)) {
  struct Result {
    Out value;
    bool whole;
  };
  const auto complete_all = [](AnyFunction one, const void* const* inputs, void* const* results,
                               unsigned present) {
    Out values[32];
    void* places[32];
    for (int lane = 0; lane < 32; ++lane) places[lane] = &values[lane];
    if (present == ~0u) complete<In, Out>(one, inputs, places, present);
    for (int lane = 0; lane < 32; ++lane)
      if (present >> lane & 1u)
        *static_cast<Result*>(results[lane]) = {values[lane], present == ~0u};
  };
  Result result;
  compiler_fence();
  warp_rendezvous(name, ~0u, &mine, &result, reinterpret_cast<AnyFunction>(all), complete_all);
  compiler_fence();
  if (!result.whole) fail_thread(std::string(name) + ", and a lane has ended");
  return result.value;
}

using FourRegisters = std::array<std::uint32_t, 4>;

/// What a thread receives: of matrix i, rows at lanes[8 i .. 8 i + 7], two elements of 16 bits.
template <bool transposed>
FourRegisters matrices_of(const std::array<const void*, 32>& lanes, int lane) {
  const auto element = [&lanes](int matrix, int row, int column) {
    std::uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(lanes[matrix * 8 + row]) + column * 2, 2);
    return std::uint32_t{bits};
  };
  FourRegisters result;
  for (int i = 0; i < 4; ++i) {
    const int major = lane / 4, minor = lane % 4 * 2;
    result[i] = transposed ? element(i, minor, major) | element(i, minor + 1, major) << 16
                           : element(i, major, minor) | element(i, major, minor + 1) << 16;
  }
  return result;
}

/// Not inlined: what calls it is the kernel, whose line reports name.
template <bool transposed>
__attribute__((noinline)) void load_matrices(const char* name, std::uint32_t (&result)[4],
                                             const void* row) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    fail_thread(std::string(name) + " of a row that is not aligned to 16 bytes");
  if (!is_shared(row, 16))
    fail_thread(std::string(name) + " of a row that is not in shared memory");
  matrix_row(row, __builtin_return_address(0));
  const FourRegisters registers =
      whole_warp<const void*, FourRegisters>(name, row, matrices_of<transposed>);
  std::copy(registers.begin(), registers.end(), result);
}

/// How a register holds numbers: one of 32 bits, or two of 16, the first in the lower half.
struct Tf32 {
  static constexpr int per_register = 1;
  static double number(std::uint32_t bits, int) {  // the lower 13 bits are ignored
    return static_cast<double>(std::bit_cast<float>(bits & 0xffffe000u));
  }
};
template <class T>
struct Of16Bits {
  static constexpr int per_register = 2;
  static double number(std::uint32_t bits, int half) {
    const T x = T::of_bits(static_cast<std::uint16_t>(bits >> (16 * half)));
    return static_cast<double>(static_cast<float>(x));
  }
};

/// A sum of a tensor core as it is stored: rounded towards zero.
inline float cut_off(double sum) {
  const float nearest = static_cast<float>(sum);
  const bool too_large = std::abs(static_cast<double>(nearest)) > std::abs(sum);
  return too_large ? std::nextafter(nearest, 0.0f) : nearest;
}

struct MmaOperands {
  float d[4];
  std::uint32_t a[4], b[2];
};

/// The depth of an instruction is two groups; in each, thread t of four holds neighbours, as many
/// as fit into a register.
template <class Type>
std::array<float, 4> multiply_add(const std::array<MmaOperands, 32>& lanes, int lane) {
  constexpr int depth = 2 * 4 * Type::per_register;
  const int g = lane / 4, t = lane % 4;
  double a[2][depth], b[2][depth];  // of rows g and g + 8, of columns 2 t and 2 t + 1
  for (int k = 0; k < depth; ++k) {
    const int upper = k / (depth / 2), place = k % (depth / 2);
    const int holder = place / Type::per_register, part = place % Type::per_register;
    for (int i = 0; i < 2; ++i) {
      a[i][k] = Type::number(lanes[g * 4 + holder].a[upper * 2 + i], part);
      b[i][k] = Type::number(lanes[(2 * t + i) * 4 + holder].b[upper], part);
    }
  }
  std::array<float, 4> result;
  for (int i = 0; i < 4; ++i) {
    double sum = static_cast<double>(lanes[lane].d[i]);
    for (int k = 0; k < depth; ++k) sum += a[i / 2][k] * b[i % 2][k];
    result[i] = cut_off(sum);
  }
  return result;
}

template <class Type>
void mma(const char* name, float (&d)[4], const std::uint32_t (&a)[4],
         const std::uint32_t (&b)[2]) {
  MmaOperands mine;
  std::copy(d, d + 4, mine.d);
  std::copy(a, a + 4, mine.a);
  std::copy(b, b + 2, mine.b);
  const std::array<float, 4> sums =
      whole_warp<MmaOperands, std::array<float, 4>>(name, mine, multiply_add<Type>);
  std::copy(sums.begin(), sums.end(), d);
}

}  // namespace simt::detail

__forceinline__ void ldmatrix_x4(std::uint32_t (&result)[4], const void* row) {
  simt::detail::load_matrices<false>("ldmatrix", result, row);
}

__forceinline__ void ldmatrix_x4_trans(std::uint32_t (&result)[4], const void* row) {
  simt::detail::load_matrices<true>("ldmatrix.trans", result, row);
}

/// Adding half of what is cut off to the magnitude rounds to the nearest, ties away from zero.
inline std::uint32_t to_tf32(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;  // infinity, NaN
  return (bits + 0x1000u) & 0xffffe000u;
}

inline void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
  simt::detail::mma<simt::detail::Tf32>("mma.m16n8k8.tf32", d, a, b);
}

inline void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                              const std::uint32_t (&b)[2]) {
  simt::detail::mma<simt::detail::Of16Bits<__nv_bfloat16>>("mma.m16n8k16.bf16", d, a, b);
}

inline void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
  simt::detail::mma<simt::detail::Of16Bits<__half>>("mma.m16n8k16.f16", d, a, b);
}
