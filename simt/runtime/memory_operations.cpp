/// Stream memory operations: a stream writes a value in memory, or waits for one that another
/// stream, or another process, writes (CUDA driver API, "Stream Memory Operations").

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/simt/races/races.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

using namespace simt::detail;

namespace {

static_assert(batch_node == static_cast<cudaGraphNodeType>(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP));
constexpr unsigned most_in_batch = 255;  // "Must be less than 256"

/// Of 32 or 64 bits.
template <class T>
struct Value {
  T* address;
  T value;

  /// A release: what the stream did before is seen by every thread that sees the value.
  void write() const {
    std::atomic_ref(*address).store(value, std::memory_order_release);
    races::defined(address, sizeof value);
  }

  /// An acquire, if it is there.
  bool there(unsigned flags) const {
    const T now = std::atomic_ref(*address).load(std::memory_order_acquire);
    switch (flags) {
      case CU_STREAM_WAIT_VALUE_GEQ: return static_cast<std::make_signed_t<T>>(now - value) >= 0;
      case CU_STREAM_WAIT_VALUE_EQ: return now == value;
      case CU_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
      default: return static_cast<T>(~(now | value)) != 0;
    }
  }
};

/// Runs `function` on the operation's value.
template <class F>
bool with_value(const CUstreamBatchMemOpParams& operation, F function) {
  const auto& p = operation.waitValue;  // writeValue has the same fields
  const bool is_64 = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                     operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  if (is_64)
    return function(Value<cuuint64_t>{reinterpret_cast<cuuint64_t*>(p.address), p.value64});
  return function(Value<cuuint32_t>{reinterpret_cast<cuuint32_t*>(p.address), p.value});
}

unsigned condition_of(unsigned flags) {
  return flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH);
}

bool is_wait(const CUstreamBatchMemOpParams& operation) {
  return operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ||
         operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

void check(const Runtime& runtime, const Stream& stream,
           const CUstreamBatchMemOpParams& operation) {
  const auto type = operation.operation;
  require(type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64 ||
              is_wait(operation),
          cudaErrorInvalidValue);
  const unsigned flags = operation.waitValue.flags;
  require(is_wait(operation) ? condition_of(flags) <= CU_STREAM_WAIT_VALUE_NOR
                             : flags == CU_STREAM_WRITE_VALUE_DEFAULT,
          cudaErrorInvalidValue);
  with_value(operation, [&]<class T>(const Value<T>& one) {
    require(reinterpret_cast<std::uintptr_t>(one.address) % sizeof(T) == 0, cudaErrorInvalidValue);
    const AllocationPointer memory = runtime.find(one.address, sizeof(T));
    require(memory && runtime.can_access(stream.device, *memory), cudaErrorInvalidValue);
    // Stricter than CUDA: without the flush, a wait for another process would not be enough.
    require(!is_wait(operation) || !memory->shared || flags != condition_of(flags),
            cudaErrorInvalidValue);
    return true;
  });
}

/// Nothing if none waits. It tells what the first one waits for, unless another process, or the
/// host, can write what one of them waits for.
std::optional<Waits> waits_of(const Runtime& runtime,
                              const std::vector<CUstreamBatchMemOpParams>& batch) {
  constexpr const char* conditions[] = {" is at least ", " is ", " has a bit of ",
                                        " lacks a bit of "};
  std::optional<Waits> waits;
  for (const CUstreamBatchMemOpParams& one : batch) {
    if (!is_wait(one)) continue;
    const AllocationPointer memory = runtime.find(reinterpret_cast<void*>(one.waitValue.address));
    if (memory->kind != Allocation::Kind::device || memory->source == Allocation::Source::opened ||
        (memory->shared && memory->shared->held_elsewhere()))
      return Waits{.in_queue = true};
    if (waits) continue;
    with_value(one, [&](const auto& value) {
      char address[32];
      std::snprintf(address, sizeof address, "%p", static_cast<void*>(value.address));
      waits = {.in_queue = true,
               .awaits = std::string("until the value at ") + address +
                         conditions[condition_of(one.waitValue.flags)] +
                         std::to_string(value.value)};
      return true;
    });
  }
  return waits;
}

/// What the driver's functions return where the runtime's return an error of the same number; they
/// do not touch what cudaGetLastError returns.
template <class Body>
CUresult call_driver(Body&& body) {
  const cudaError_t before = this_thread.last_error;
  const cudaError_t error = call_runtime(body);
  this_thread.last_error = before;
  return static_cast<CUresult>(error);
}

CUresult submit_batch(CUstream handle, std::vector<CUstreamBatchMemOpParams> batch) {
  return call_driver([&](Runtime& runtime) {
    Stream& stream = runtime.stream(handle);
    for (const CUstreamBatchMemOpParams& one : batch) check(runtime, stream, one);
    std::optional<Waits> waits = waits_of(runtime, batch);
    submit_run(
        runtime, stream, batch_node,
        [batch = std::move(batch)]() -> Run {
          return [batch, next = std::size_t{0}]() mutable {
            for (; next < batch.size(); ++next) {
              const CUstreamBatchMemOpParams& one = batch[next];
              const bool done = with_value(one, [&one](const auto& value) {
                if (is_wait(one)) return value.there(condition_of(one.waitValue.flags));
                value.write();
                return true;
              });
              if (!done) return false;
            }
            return true;
          };
        },
        std::move(waits));
  });
}

CUresult submit_one(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address,
                    cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  if (type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64)
    operation.waitValue.value64 = value;
  else
    operation.waitValue.value = static_cast<cuuint32_t>(value);
  operation.waitValue.flags = flags;
  return submit_batch(stream, {operation});
}

}  // namespace

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                              unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                             unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                             unsigned flags) {
  return submit_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                            unsigned flags) {
  if (count > most_in_batch || (count > 0 && !operations) || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return submit_batch(stream, {operations, operations + count});
}
