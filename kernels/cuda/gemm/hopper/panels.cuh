#pragma once
/// How operands lie in shared memory for Hopper's copy engine and tensor cores, and the descriptors
/// that say so to the latter. The instructions themselves are in <hopper_intrinsics.h>. Section
/// numbers are those of NVIDIA's PTX ISA, version 9.0.
///
/// Panels. An operand's tile lies in shared memory as panels of 64 rows of 128 bytes, 8 KiB each:
///
///   K-major    row r of a panel is row r of op(A) (column r of op(B)): 128 bytes along k
///   MN-major   row r of a panel is the r-th k: 64 two-byte elements along m (or n)
///
/// Within a panel, the copy engine permutes the 16-byte chunks of row r: chunk c goes to place
/// c xor (r mod 8), the 128-byte swizzle (5.5.7). So the 8 chunks of one column lie in different
/// banks, and wgmma, told of the swizzle, reads rows and columns alike without bank conflicts.
/// The pattern is one of address bits (bits 4-6 are flipped by bits 7-9), repeats every 8 rows, and
/// begins where an address is a multiple of 1024: panels must lie there.

#include <cuda_runtime.h>
#include <device_intrinsics.h>
#include <hopper_intrinsics.h>

#include <cstdint>

namespace hopper {

constexpr int PANEL_ROWS = 64;
constexpr int ROW_BYTES = 128;
constexpr int PANEL_BYTES = PANEL_ROWS * ROW_BYTES;

// ---- wgmma: descriptors (9.7.15.5.1.2.2) -------------------------------------------------------
//
//   bits  0-13  start address / 16
//   bits 16-29  leading dimension byte offset / 16
//   bits 32-45  stride dimension byte offset / 16
//   bits 49-51  base offset: 0, since the pattern begins at a multiple of 1024
//   bits 62-63  1: 128-byte swizzle
//
// The offsets say where the next 8 x 128-byte block of the swizzle pattern lies (9.7.15.5.1.2.1.3;
// T elements are 16 bytes):
//
//   K-major    ((8,m),(T,2k)):((8T,SBO),(1,T))      8 rows at 128 bytes; SBO: to the next 8 rows,
//                                                   1024. LBO is not used, "assumed to be 1"
//   MN-major   ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO)) 64 elements along m, 8 k at 128 bytes; SBO: to
//                                                   the next 8 k, 1024. LBO: to the next 64 along m
//                                                   (or n), the next panel, 8192
//
// One wgmma takes 32 bytes of k (16 elements of 2 bytes, 8 of 4): the next step starts 32 bytes
// further along the rows of a K-major panel (the swizzle is one of addresses, so it stays right,
// and the base offset stays 0), 16 rows = 2048 bytes further in an MN-major one.

__host__ __device__ constexpr std::uint64_t descriptor_field(std::uint64_t bytes) {
  return (bytes & 0x3ffff) >> 4;
}

/// The descriptor of the operand whose first panel is at `panel`.
template <bool mn_major>
__device__ std::uint64_t descriptor(const void* panel) {
  constexpr std::uint64_t leading = mn_major ? descriptor_field(PANEL_BYTES) : 1;
  constexpr std::uint64_t stride = descriptor_field(8 * ROW_BYTES);
  constexpr std::uint64_t swizzle_128 = 1;
  return descriptor_field(shared_address(panel)) | leading << 16 | stride << 32 | swizzle_128 << 62;
}

/// What to add to a descriptor for the next 32 bytes of k.
template <bool mn_major>
constexpr std::uint64_t next_step = descriptor_field(mn_major ? 16 * ROW_BYTES : 32);

}  // namespace hopper
