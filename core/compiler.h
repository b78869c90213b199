#pragma once
/// What compilers spell differently.

/// Marks a function that the processor and a GPU's threads both call. To other compilers than nvcc
/// the mark means nothing.
#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

/// Marks a short function of vectors that loops call: a call would pass them through memory.
#define LOCKSTEP_ALWAYS_INLINE [[gnu::always_inline]] inline

/// In front of a loop: no iteration reads what another one has written. Without this promise the
/// compiler must assume that the loop's pointers overlap, and a loop with equal pointers (sum == a)
/// is not vectorized.
#ifdef __clang__
#define LOCKSTEP_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_IVDEP _Pragma("GCC ivdep")
#endif
