#pragma once
/// Instructions of the GPU that CUDA C++ has no name for: asynchronous copies into shared memory,
/// and the tensor cores. This is the real thing, in inline PTX; builds with the simulator find a
/// header of the same name in simt/include, which does the same in plain C++. Section numbers are
/// those of the PTX ISA, version 8.5 and later.
///
/// Names are spelled as PTX spells them, with underscores. A warp-wide instruction (ldmatrix, mma)
/// must be executed by all 32 threads of the warp together.

#include <cuda_runtime.h>

#include <cstdint>

/// The block's dynamic shared memory, aligned to 128 bytes. All calls return the same memory.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char lockstep_dynamic_shared[];
  return reinterpret_cast<T*>(lockstep_dynamic_shared);
}

/// The address as instructions on shared memory want it: 32 bits, counted from its beginning.
__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// Asynchronous copies from global to shared memory (PTX: cp.async). A thread starts copies, closes
// a group of them by `commit`, and waits until at most N of its groups are unfinished. Other
// threads see the data after a block barrier that follows the wait.

/// Copies 16 bytes, or writes 16 zero bytes if not `valid`: then `global` is not read. Both
/// addresses are multiples of 16. Goes past the first-level cache.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}

/// The same with 4 bytes, and multiples of 4. Goes through the first-level cache: the other threads
/// of the warp may want the rest of the line.
__device__ __forceinline__ void cp_async_4(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 4 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int unfinished>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(unfinished) : "memory");
}

/// Four 8 x 8 matrices of 16-bit elements, one register of two elements of each (PTX: ldmatrix).
/// Thread l of the warp gives the address of row l % 8 of matrix l / 8: 8 elements, 16 bytes,
/// aligned to 16. It receives of matrix i, in result[i], the elements (l / 4, 2 * (l % 4)) and the
/// one to its right, which is in the upper half of the register.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&result)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same of the transposed matrices: elements (2 * (l % 4), l / 4) and the one below it.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&result)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(shared_address(row))
               : "memory");
}

/// x rounded to the nearest tf32 (8 bits of exponent, 10 of mantissa), ties away from zero.
__device__ __forceinline__ std::uint32_t to_tf32(float x) {
  std::uint32_t result;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(result) : "f"(x));
  return result;
}

// d (16, 8) += a (16, K) b (K, 8) on a tensor core, f32 sums (PTX: mma.sync). Thread l of the warp
// holds, with g = l / 4 and t = l % 4, in this order:
//
//        m16n8k8, tf32                         m16n8k16, bf16 and f16: pairs
//   a    (g, t)   (g+8, t)                     (g, 2t..)     (g+8, 2t..)
//        (g, t+4) (g+8, t+4)                   (g, 2t+8..)   (g+8, 2t+8..)
//   b    (t, g)   (t+4, g)                     (2t.., g)     (2t+8.., g)
//   d    (g, 2t)  (g, 2t+1)  (g+8, 2t)  (g+8, 2t+1)          the same
//
// A pair "(g, 2t..)" is the elements (g, 2t) and (g, 2t+1), the first in the lower half.

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
