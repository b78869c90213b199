#pragma once
/// Simulated NCCL: a communicator of this process, and its operations. All of it is guarded by the
/// runtime's lock.

#include <nccl.h>

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/simt/nccl/nccl_segment.h"
#include "lockstep/simt/runtime/capture.h"
#include "lockstep/simt/runtime/runtime.h"

namespace simt::detail {

/// Thrown inside a call of NCCL: what it returns, and what ncclGetLastError says then.
struct NcclRefusal {
  ncclResult_t result;
  std::string text;
};
inline void require(bool condition, ncclResult_t result, const char* text) {
  if (!condition) throw NcclRefusal{result, text};
}

struct Communicator;
using CommunicatorPointer = std::shared_ptr<Communicator>;

enum class NcclKind : int { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };

/// One call of an operation.
struct NcclCall {
  NcclKind kind;
  const std::byte* from;  ///< null for a receive
  std::byte* to;          ///< null for a send
  std::size_t count;      ///< of elements: all; each rank's part of them in a scatter or gather
  ncclDataType_t type;
  int peer;  ///< the other one of a send or receive, or the root
};

/// ncclCommSplit under way: the ranks of the parent tell each other what they want.
struct Split {
  struct Wish {
    int color, key;
    SharedName name;  ///< of the file that the lowest rank of its color offers
  };
  Wish mine{};
  std::vector<Wish> all;  ///< by rank of the parent
  MarkPointer told;       ///< all of them have arrived
  CommunicatorPointer parent;
};

struct Communicator {
  int rank = -1, size = 0;
  int device = 0;
  bool blocking = true;
  SharedName name{};                ///< of the segment's file
  std::optional<Segment> segment;   ///< null while the ranks of a split are not known
  std::shared_ptr<Split> split;     ///< it comes from this one, until the segment is there
  std::vector<MarkPointer> splits;  ///< of this one, under way

  bool ready = false;  ///< all ranks have joined
  bool aborted = false, finalized = false, destroyed = false;
  ncclResult_t error = ncclSuccess;  ///< no operation is possible any more

  /// A communicator that is not blocking connects at its first operation: the host goes on, and the
  /// operation is enqueued later, when the host asks.
  bool connected = false;
  std::function<void()> first_operation;
  int times_asked = 0;

  std::uint64_t calls = 0;         ///< of operations, for failures on order
  std::list<const void*> running;  ///< operations, in the order in which the host issued them
  /// Graphs with operations of this communicator hold copies.
  std::shared_ptr<int> in_graph = std::make_shared<int>();
  std::vector<std::unique_ptr<char>> registered;  ///< handles of ncclCommRegister
};

inline bool in_graphs(const Communicator& comm) { return comm.in_graph.use_count() > 1; }

/// What ncclCommGetAsyncError says; makes what progress there can be.
ncclResult_t progress(Runtime& runtime, const CommunicatorPointer& comm);

/// The communicator of a handle. Throws NcclRefusal for one that is none.
CommunicatorPointer find(ncclComm_t handle);
/// The same; it must be able to start operations.
CommunicatorPointer find_ready(Runtime& runtime, ncclComm_t handle);

/// In a group of calls: ncclGroupEnd waits until all ranks have joined. False: there is no group.
bool join_in_group(ncclComm_t* handle);
/// Waits until all ranks have joined, if the communicator is blocking; what became of it.
ncclResult_t wait_until_joined(Runtime& runtime, ncclComm_t* handle);

/// Enqueues, or captures, calls that are one operation.
void submit_calls(Runtime& runtime, Stream& stream, const CommunicatorPointer& comm,
                  std::vector<NcclCall> calls);
/// One run of that.
Run begin_calls(const CommunicatorPointer& comm, const std::vector<NcclCall>& calls);

/// Bytes of an element; 0: not a type that the simulator knows.
std::size_t size_of(ncclDataType_t type);
/// to = ((part 0 + part 1) + part 2) + ..., each addition rounded to the type.
void add_parts(std::span<const std::byte* const> parts, std::byte* to, std::size_t count,
               ncclDataType_t type);

/// Runs `body`, which returns a result or throws NcclRefusal, as a call of NCCL.
ncclResult_t call_nccl(const std::function<ncclResult_t(Runtime&)>& body);

}  // namespace simt::detail

struct ncclComm {
  simt::detail::CommunicatorPointer communicator;
};
