#pragma once
/// LOCKSTEP_IVDEP, in front of a loop, promises the compiler that no iteration reads what another
/// one has written. Without the promise the compiler must assume that the loop's pointers overlap,
/// and a loop with equal pointers (sum == a) is not vectorized.

#ifdef __clang__
#define LOCKSTEP_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_IVDEP _Pragma("GCC ivdep")
#endif
