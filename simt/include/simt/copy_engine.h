#pragma once
/// Barriers in shared memory that count arrivals and bytes (mbarrier), and the copy engine (TMA)
/// whose bytes they count. kernels/cuda/native/hopper_intrinsics.h tells how they are used.
///
/// As with cp.async, what a copy writes appears as late as it may: its destination holds a NaN
/// pattern from the moment that it is started, and the data come when no thread of the cluster can
/// run. So a kernel computes NaN if it reads before it waited, and if it starts a copy to where
/// others still read.

#include <cstdint>

#include "../cuda.h"

namespace simt::detail {

// `barrier` lies in dynamic shared memory of the running block.
void mbarrier_init(void* barrier, std::uint32_t arrivals);
/// fence.mbarrier_init: other blocks and the copy engine may use what this thread has initialized.
void mbarrier_fence_init();
/// One arrival at the barrier at the same place in block `rank`, that announces bytes of copies.
void mbarrier_arrive(unsigned rank, const void* barrier, std::uint32_t bytes);
void mbarrier_wait(const void* barrier, std::uint32_t parity);

/// Starts the copy of a box of the matrix to `to`, and to the same place in every block whose bit
/// is set in `blocks`; counted by the barrier at the same place as `barrier` there.
void copy_box(unsigned blocks, void* to, const CUtensorMap& map, int inner, int outer,
              const void* barrier);

}  // namespace simt::detail
