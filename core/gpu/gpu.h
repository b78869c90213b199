#pragma once
/// What a program may want to know of the GPUs, without CUDA's headers. In builds without any,
/// there are none, and everything that needs one throws DeviceError.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/core/device.h"
#include "lockstep/core/storage.h"

namespace lockstep::gpu {

/// The kind of device that this build drives besides the cpu: sim or cuda, or none.
std::optional<Device::Kind> kind();

/// How many there are.
int count();

/// The device of the `local_rank`-th process of a machine: a GPU where this build drives GPUs and
/// there are some (ranks beyond their number share them), else the cpu. Never the simulator: code
/// that wants it says so, Device{Device::Kind::sim}.
Device default_device(int local_rank = 0);

/// "NVIDIA H200, 132 multiprocessors, compute capability 9.0".
std::string describe(int index);

/// How often each kernel was launched in this process, by name; kernels not launched are left out.
/// A recorded step (graph.h) counts when it is recorded, not when it is replayed.
std::map<std::string, std::uint64_t> kernel_launches();

/// Lets the simulator's streams move: they do so only while a thread calls its runtime. A thread
/// that waits on the host for other ranks calls this, because those may wait for this rank's
/// streams. On a real GPU, nothing.
void nudge();

/// Ranks of this process are going to be threads, whose streams wait for each other. So kernels are
/// to be loaded when CUDA is first used, not when they are first launched, which waits for all
/// streams (CUDA_MODULE_LOADING); and each stream is to have its own hardware queues, for kernels
/// (CUDA_DEVICE_MAX_CONNECTIONS) and for copies (CUDA_DEVICE_MAX_COPY_CONNECTIONS): a copy that
/// waits for a peer would hold up the peer's copies behind it. Sets what the environment leaves
/// open; too late if CUDA is in use. Copies from and to the host then first wait for their stream:
/// until they are done they keep the driver, which a peer may need. Elsewhere, nothing.
void prepare_for_threads();

/// Page-locked host memory, which the GPU reads and writes while the host goes on. Slow to get:
/// meant to be kept. In builds without a GPU, ordinary memory.
Storage allocate_pinned(std::size_t bytes);

}  // namespace lockstep::gpu
