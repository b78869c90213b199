#pragma once
/// Marks a function that the processor and a GPU's threads both call. To other compilers than nvcc
/// the mark means nothing.

#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif
