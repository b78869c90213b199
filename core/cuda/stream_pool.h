#pragma once
/// Streams that are used again.
///
/// CUDA deals streams to a GPU's hardware queues in turn, as they are made, whether or not earlier
/// ones still live. Two streams of one queue run one after the other: if the first waits for a peer
/// rank, so does the second, and ranks that are threads can then wait for each other for ever. So a
/// stream that ends is kept here for the next one that is wanted. As long as no more streams live
/// than there are queues (CUDA_DEVICE_MAX_CONNECTIONS, at most 32), no two share one.
///
/// Thread-safe. Source: CUDA C++ Programming Guide, "CUDA Environment Variables" and "Implicit
/// Synchronization"; seen on an H100: ranks that are threads hang after more than 32 streams.

#include <cuda_runtime.h>

#include "lockstep/core/cuda/handle.h"
#include "lockstep/core/gpu/stream.h"

namespace lockstep::cuda {

/// Takes the stream back if it is idle; else (a peer has failed) destroys it.
cudaError_t keep_stream(cudaStream_t stream);

/// Never waits for other streams, nor they for it.
using StreamHandle = Handle<cudaStream_t, keep_stream>;

/// A stream of the current device. Throws DeviceError.
StreamHandle take_stream(const char* operation, StreamUse use = StreamUse::computing);

}  // namespace lockstep::cuda
