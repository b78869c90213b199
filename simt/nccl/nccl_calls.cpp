/// Simulated NCCL: operations, groups of them, and memory.

#include <algorithm>
#include <limits>

#include "lockstep/simt/nccl/nccl_communicator.h"
#include "lockstep/simt/runtime/call.h"

namespace simt::detail {
namespace {

/// Between ncclGroupStart and ncclGroupEnd of this host thread.
struct Group {
  struct Part {
    CommunicatorPointer comm;
    Stream* stream;
    std::vector<NcclCall> calls;
  };
  int depth = 0;
  ncclResult_t error = ncclSuccess;  ///< of the first call that failed
  std::vector<Part> parts;           ///< by communicator
  std::vector<ncclComm_t*> joining;
};
thread_local Group group;

/// Memory that the runtime knows, all of it; the communicator's device's, if it is a device's.
void check_buffer(const Runtime& runtime, const Communicator& comm, const void* data,
                  std::size_t bytes) {
  if (bytes == 0) return;
  try {
    const AllocationPointer memory = data ? runtime.find(data, bytes) : nullptr;
    require(memory && (memory->kind != Allocation::Kind::device || memory->device == comm.device),
            ncclInvalidArgument, "a buffer is not memory of the device");
  } catch (const Refusal&) {
    throw NcclRefusal{ncclInvalidArgument, "a buffer ends beyond the end of its memory"};
  }
}

void check_buffers(const Runtime& runtime, const Communicator& comm, const NcclCall& call) {
  const std::size_t element = size_of(call.type);
  require(element > 0, ncclInvalidArgument, "a type that the simulator does not know");
  require(call.count <= std::numeric_limits<std::size_t>::max() / element / comm.size,
          ncclInvalidArgument, "more elements than there can be");
  const std::size_t bytes = call.count * element, all = bytes * comm.size;
  const bool sends = call.kind != NcclKind::receive &&
                     (call.kind != NcclKind::broadcast || call.peer == comm.rank);
  if (sends)
    check_buffer(runtime, comm, call.from, call.kind == NcclKind::reduce_scatter ? all : bytes);
  if (call.kind != NcclKind::send)
    check_buffer(runtime, comm, call.to, call.kind == NcclKind::all_gather ? all : bytes);
}

/// Counts the call and fails if its number is up (Config::nccl_fail_rank).
void count_call(const Runtime& runtime, Communicator& comm) {
  ++comm.calls;
  if (runtime.config.nccl_fail_rank != comm.rank || runtime.config.nccl_fail_call != comm.calls)
    return;
  comm.error = ncclSystemError;
  comm.segment->table().failed = true;
  throw NcclRefusal{ncclSystemError, "this call was to fail (LOCKSTEP_SIM_NCCL_FAIL)"};
}

void add_to_group(Runtime& runtime, ncclComm_t handle, cudaStream_t stream_handle,
                  const NcclCall& call) {
  const CommunicatorPointer comm = find_ready(runtime, handle);
  require(!comm->finalized, ncclInvalidArgument, "the communicator is finalized");
  require(0 <= call.peer && call.peer < comm->size, ncclInvalidArgument, "no rank of this number");
  check_buffers(runtime, *comm, call);
  Stream& stream = runtime.stream(stream_handle);
  require(stream.device == comm->device, ncclInvalidUsage,
          "the stream and the communicator are of different devices");
  count_call(runtime, *comm);
  const bool collective = call.kind != NcclKind::send && call.kind != NcclKind::receive;
  if (collective && call.count == 0) return;  // as NCCL does: ranks do not meet for nothing
  auto part = std::find_if(group.parts.begin(), group.parts.end(),
                           [&comm](const Group::Part& one) { return one.comm == comm; });
  if (part == group.parts.end()) part = group.parts.insert(part, {comm, &stream, {}});
  require(part->stream == &stream, ncclInvalidUsage,
          "the simulator wants one stream for a communicator's calls in a group");
  part->calls.push_back(call);
}

ncclResult_t submit_part(Runtime& runtime, Group::Part part) {
  const CommunicatorPointer comm = part.comm;
  auto submit = [&runtime, part = std::move(part)] {
    submit_calls(runtime, *part.stream, part.comm, part.calls);
  };
  if (comm->blocking || std::exchange(comm->connected, true)) {
    submit();
    return ncclSuccess;
  }
  comm->first_operation = std::move(submit);
  return ncclInProgress;
}

ncclResult_t end_group(Runtime& runtime) {
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  if (ended.error != ncclSuccess) return ended.error;
  ncclResult_t worst = ncclSuccess;
  const auto note = [&worst](ncclResult_t result) {
    if (worst == ncclSuccess || worst == ncclInProgress)
      worst = result == ncclSuccess ? worst : result;
  };
  for (const Group::Part& part : ended.parts) note(submit_part(runtime, part));
  for (ncclComm_t* handle : ended.joining) note(wait_until_joined(runtime, handle));
  return worst;
}

/// A call outside of a group is a group of one.
ncclResult_t call_operation(ncclComm_t comm, cudaStream_t stream, const NcclCall& call) {
  return call_nccl([&](Runtime& runtime) {
    ++group.depth;
    try {
      add_to_group(runtime, comm, stream, call);
    } catch (const NcclRefusal& refusal) {
      if (group.error == ncclSuccess) group.error = refusal.result;
      end_group(runtime);
      throw;
    } catch (const Refusal&) {
      if (group.error == ncclSuccess) group.error = ncclUnhandledCudaError;
      end_group(runtime);
      throw;
    }
    return end_group(runtime);
  });
}

ncclResult_t call_operation(NcclKind kind, const void* from, void* to, std::size_t count,
                            ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return call_operation(
      comm, stream,
      {kind, static_cast<const std::byte*>(from), static_cast<std::byte*>(to), count, type, peer});
}

}  // namespace

bool join_in_group(ncclComm_t* handle) {
  if (group.depth > 0) group.joining.push_back(handle);
  return group.depth > 0;
}

}  // namespace simt::detail

using namespace simt::detail;

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  return call_nccl([](Runtime& runtime) {
    require(group.depth > 0, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    return end_group(runtime);
  });
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return call_operation(NcclKind::all_reduce, from, to, count, type, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t received_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return call_operation(NcclKind::reduce_scatter, from, to, received_count, type, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t sent_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call_operation(NcclKind::all_gather, from, to, sent_count, type, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return call_operation(NcclKind::broadcast, from, to, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call_operation(NcclKind::send, from, nullptr, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call_operation(NcclKind::receive, nullptr, to, count, type, peer, comm, stream);
}

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  return cudaMalloc(data, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* data) {
  return free_at_once(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(ncclComm_t handle, void* data, std::size_t bytes, void** made) {
  return call_nccl([&](Runtime& runtime) {
    require(made != nullptr && bytes > 0, ncclInvalidArgument, "nothing to register");
    const CommunicatorPointer comm = find_ready(runtime, handle);
    check_buffer(runtime, *comm, data, bytes);
    comm->registered.push_back(std::make_unique<char>());
    *made = comm->registered.back().get();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t handle, void* made) {
  return call_nccl([&](Runtime&) {
    const auto erased = std::erase_if(find(handle)->registered,
                                      [made](const auto& one) { return one.get() == made; });
    require(erased == 1, ncclInvalidArgument, "not registered with this communicator");
    return ncclSuccess;
  });
}
