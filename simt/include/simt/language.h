#pragma once
/// The words that CUDA adds to C++. Host and device are one here, so most of them mean nothing.

#include "vector_types.h"

#define __host__
#define __device__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// A kernel stays one function under its own name: reports and the filling of its shared memory find
// it by its address. (clang makes no clones, and does not know the word.)
#ifdef __clang__
#define __global__ __attribute__((noinline))
#else
#define __global__ __attribute__((noinline, noclone))
#endif

// One block runs at a time, so a block's shared memory is a static variable of its kernel (blocks
// of a cluster run together, and are refused if their kernel has any: only dynamic is theirs
// alone). `used`, because the simulator writes to it (a pattern of NaN before each block) unseen by
// the compiler.
#define __shared__ static __attribute__((used))

/// Set at every switch to a thread: the values of the one that runs. A debugger prints them.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
constexpr int warpSize = 32;
