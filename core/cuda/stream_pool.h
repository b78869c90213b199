#pragma once
/// Streams that are used again.
///
/// CUDA deals streams to a GPU's hardware queues in turn, as they are made, whether or not earlier
/// ones still live. Two streams of one queue run one after the other: if the first waits for a peer
/// rank, so does the second, and ranks that are threads can then wait for each other for ever. So a
/// stream that ends is kept here for the next one that is wanted, and a stream is taken whose queue
/// no other one in use has, as long as there are queues (CUDA_DEVICE_MAX_CONNECTIONS, at most 32).
/// Streams that others make (NCCL, a user's code) are not known here.
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

/// How many streams of the device are in use. Beyond hardware_queues() some share a queue.
int streams_in_use(int device);

/// What CUDA_DEVICE_MAX_CONNECTIONS says: 1 to 32, else 8.
int hardware_queues();

}  // namespace lockstep::cuda
