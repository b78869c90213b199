/// Simulated NCCL: how communicators come to be and end.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "lockstep/simt/nccl/nccl_communicator.h"
#include "lockstep/simt/runtime/call.h"

namespace simt::detail {
namespace {

struct Library {
  std::vector<std::unique_ptr<ncclComm>> handles;
  std::string last_error;
  /// That other ranks are to find: this process keeps them open until all have.
  std::list<SharedFile> offered;
};

Library& library() {
  static Library& one = *new Library;  // never destroyed, as the runtime
  [[maybe_unused]] static auto& counts = Runtime::get().count_living.emplace_back([](auto& all) {
    all["NCCL communicators"] = one.handles.size();
    for (const auto& handle : one.handles)
      all["NCCL registrations"] += handle->communicator->registered.size();
  });
  return one;
}

SharedName offer() {
  library().offered.push_back(Segment::create_file());
  return library().offered.back().name();
}

void withdraw(const SharedName& name) {
  if (name.process != getpid()) return;
  library().offered.remove_if([&name](const SharedFile& file) { return file.name() == name; });
}

/// Two ranks may share a GPU of one host only if they say that they are on two.
std::uint64_t host() {
  const char* name = std::getenv("NCCL_HOSTID");
  return std::hash<std::string_view>()(name ? name : "");
}

void join(Communicator& comm) {
  const std::optional<SharedFile> file = SharedFile::open(comm.name);
  require(file.has_value(), ncclSystemError, "the process that made the unique id has ended");
  Segment segment(*file, comm.size);
  Table& table = segment.table();
  int size = 0;
  require(table.size.compare_exchange_strong(size, comm.size) || size == comm.size,
          ncclInvalidUsage, "ranks differ in the number of ranks");
  Seat& seat = table.seats[comm.rank];
  require(!seat.taken.exchange(true), ncclInvalidUsage, "two ranks have the same number");
  seat.device = comm.device;
  seat.host = host();
  ++table.joined;
  comm.segment.emplace(std::move(segment));
}

void check_devices(const Communicator& comm) {
  const Seat* seats = comm.segment->table().seats;
  for (int a = 0; a < comm.size; ++a)
    for (int b = 0; b < a; ++b)
      if (seats[a].device == seats[b].device && seats[a].host == seats[b].host)
        throw NcclRefusal{ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(a) +
                                                " and rank " + std::to_string(b) +
                                                " both on CUDA device " +
                                                std::to_string(seats[a].device)};
}

/// The ranks of the new communicator are known when all ranks of its parent have said what they
/// want.
void leave_split(Communicator& comm) {
  const Split& split = *comm.split;
  std::vector<int> members;
  for (int rank = 0; rank < split.parent->size; ++rank)
    if (split.all[rank].color == split.mine.color) members.push_back(rank);
  std::stable_sort(members.begin(), members.end(),
                   [&split](int a, int b) { return split.all[a].key < split.all[b].key; });
  comm.size = static_cast<int>(members.size());
  comm.rank = static_cast<int>(std::find(members.begin(), members.end(), split.parent->rank) -
                               members.begin());
  comm.name = split.all[members.front()].name;
  if (split.mine.name != comm.name) withdraw(split.mine.name);
  comm.split.reset();
  join(comm);
}

bool has_joined(Communicator& comm) {
  if (comm.ready) return true;
  if (comm.split) {
    require(!comm.split->parent->aborted, ncclInternalError, "the parent was aborted");
    if (!comm.split->told->done) return false;
    leave_split(comm);
  }
  if (comm.segment->table().joined < comm.size) return false;
  withdraw(comm.name);
  check_devices(comm);
  comm.ready = true;
  return true;
}

std::shared_ptr<Communicator> make(ncclComm_t* handle, ncclConfig_t* config, bool blocking) {
  require(handle != nullptr, ncclInvalidArgument, "no place for the communicator");
  const auto made = std::make_shared<Communicator>();
  made->device = Runtime::current_device();
  made->blocking = blocking;
  if (config) {
    require(config->magic == NCCL_CONFIG_INITIALIZER.magic, ncclInvalidArgument,
            "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT) {
      require(config->blocking == 0 || config->blocking == 1, ncclInvalidArgument,
              "blocking is neither 0 nor 1");
      made->blocking = config->blocking == 1;
    }
  }
  return made;
}

void hand_out(const CommunicatorPointer& comm, ncclComm_t* handle) {
  library().handles.push_back(std::make_unique<ncclComm>(ncclComm{comm}));
  *handle = library().handles.back().get();
}

void take_back(ncclComm_t handle) {
  std::erase_if(library().handles, [handle](const auto& one) { return one.get() == handle; });
}

ncclResult_t begin(Runtime& runtime, const CommunicatorPointer& comm, ncclComm_t* handle) {
  hand_out(comm, handle);
  if (join_in_group(handle)) return ncclSuccess;
  return wait_until_joined(runtime, handle);
}

/// As commDestroySync of NCCL does (src/init.cc), also for a communicator that is aborted: it polls
/// until the last graph with one of its operations has been destroyed.
void wait_for_graphs(Runtime& runtime, const Communicator& comm, const char* call) {
  const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  bool said = false;
  runtime.wait_until([&] {
    if (in_graphs(comm) && std::chrono::steady_clock::now() > late && !std::exchange(said, true))
      std::fprintf(stderr,
                   "simulated NCCL: %s waits: a graph has an operation of the communicator, and "
                   "NCCL waits until that graph is destroyed\n",
                   call);
    return !in_graphs(comm);
  });
}

struct UniqueId {
  std::uint64_t mark;
  SharedName name;
};
constexpr std::uint64_t nccl_mark = 0x64692d6c63636e00;
static_assert(sizeof(UniqueId) <= sizeof(ncclUniqueId));

}  // namespace

CommunicatorPointer find(ncclComm_t handle) {
  for (const auto& one : library().handles)
    if (one.get() == handle) return one->communicator;
  throw NcclRefusal{ncclInvalidArgument, "not a communicator, or one that has ended"};
}

CommunicatorPointer find_ready(Runtime& runtime, ncclComm_t handle) {
  const CommunicatorPointer comm = find(handle);
  const ncclResult_t state = comm->first_operation ? ncclInProgress : progress(runtime, comm);
  constexpr const char* text =
      "Attempt to use communicator before the previous operation returned ncclSuccess";
  require(state == ncclSuccess, state == ncclInProgress ? ncclInvalidArgument : state, text);
  return comm;
}

ncclResult_t progress(Runtime&, const CommunicatorPointer& comm) {
  if (comm->error != ncclSuccess) return comm->error;
  try {
    if (!has_joined(*comm)) return ncclInProgress;
    require(!comm->segment->table().failed, ncclRemoteError, "another rank has failed");
  } catch (const NcclRefusal& refusal) {
    library().last_error = refusal.text;
    return comm->error = refusal.result;
  }
  std::erase_if(comm->splits, [](const MarkPointer& told) { return told->done; });
  if (!comm->splits.empty()) return ncclInProgress;
  const bool quiet =
      comm->running.empty() && !in_graphs(*comm) && comm->segment->table().finalized == comm->size;
  return comm->finalized && !quiet ? ncclInProgress : ncclSuccess;
}

ncclResult_t wait_until_joined(Runtime& runtime, ncclComm_t* handle) {
  const CommunicatorPointer comm = find(*handle);
  ncclResult_t state = progress(runtime, comm);
  if (!comm->blocking) return state;
  runtime.wait_until([&] {
    state = comm->aborted ? ncclInternalError : progress(runtime, comm);
    return state != ncclInProgress;
  });
  if (state != ncclSuccess) {
    take_back(*handle);
    *handle = nullptr;
  }
  return state;
}

ncclResult_t call_nccl(const std::function<ncclResult_t(Runtime&)>& body) {
  ncclResult_t result = ncclSuccess;
  const cudaError_t error = call_runtime<Context::not_needed>([&](Runtime& runtime) {
    try {
      result = body(runtime);
    } catch (const NcclRefusal& refusal) {
      library().last_error = refusal.text;
      result = refusal.result;
    }
  });
  return error == cudaSuccess ? result : ncclUnhandledCudaError;
}

}  // namespace simt::detail

using namespace simt::detail;

ncclResult_t ncclGetVersion(int* version) {
  if (!version) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {  // NCCL's words
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) {
  const std::lock_guard lock(Runtime::get().mutex);
  static thread_local std::string copy;
  copy = library().last_error;
  return copy.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return call_nccl([&](Runtime&) {
    require(id != nullptr, ncclInvalidArgument, "no place for the id");
    const UniqueId made{nccl_mark, offer()};
    *id = {};
    std::memcpy(id->internal, &made, sizeof made);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return call_nccl([&](Runtime& runtime) {
    const CommunicatorPointer comm = make(handle, config, true);
    *handle = nullptr;
    UniqueId wanted;
    std::memcpy(&wanted, id.internal, sizeof wanted);
    require(wanted.mark == nccl_mark, ncclInvalidArgument, "not an id of ncclGetUniqueId");
    require(1 <= size && size <= Table::most_ranks && 0 <= rank && rank < size, ncclInvalidArgument,
            "a rank or a number of ranks that cannot be");
    comm->name = wanted.name;
    comm->rank = rank;
    comm->size = size;
    join(*comm);
    return begin(runtime, comm, handle);
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  return call_nccl([&](Runtime& runtime) {
    const CommunicatorPointer parent = find_ready(runtime, handle);
    require(color >= 0 || color == NCCL_SPLIT_NOCOLOR, ncclInvalidArgument, "a negative color");
    const CommunicatorPointer comm = make(made, config, parent->blocking);
    *made = nullptr;
    const auto split = std::make_shared<Split>();
    split->mine = {color, key, color >= 0 ? offer() : SharedName{}};
    split->all.resize(parent->size);
    split->told = std::make_shared<Mark>();
    split->parent = parent;
    // An operation of the parent like others, in its own stream.
    Run gather = begin_calls(
        parent,
        {{NcclKind::all_gather, reinterpret_cast<const std::byte*>(&split->mine),
          reinterpret_cast<std::byte*>(split->all.data()), sizeof(Split::Wish), ncclUint8, -1}});
    Stream& stream = *runtime.make_stream(parent->device, cudaStreamNonBlocking);
    runtime.enqueue(stream, {.run = [split, gather = std::move(gather)] { return gather(); },
                             .mark = split->told});
    stream.destroyed = true;
    parent->splits.push_back(split->told);
    if (color >= 0) {
      comm->device = parent->device;
      comm->split = split;
      return begin(runtime, comm, made);
    }
    if (!parent->blocking) return ncclInProgress;
    runtime.wait_until([&] { return split->told->done; });
    return parent->aborted ? ncclInternalError : ncclSuccess;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  return call_nccl([&](Runtime& runtime) {
    require(error != nullptr, ncclInvalidArgument, "no place for the error");
    const CommunicatorPointer comm = find(handle);
    *error = progress(runtime, comm);
    if (*error == ncclInProgress) runtime.run_all_that_can();  // somebody polls for it
    if (*error != ncclSuccess || !comm->first_operation) return ncclSuccess;
    *error = ncclInProgress;
    if (comm->times_asked++ == 0) return ncclSuccess;
    std::exchange(comm->first_operation, nullptr)();
    *error = ncclSuccess;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return call_nccl([&](Runtime& runtime) {
    const CommunicatorPointer comm = find_ready(runtime, handle);
    require(!comm->finalized, ncclInvalidArgument, "it is finalized already");
    comm->finalized = true;
    ++comm->segment->table().finalized;
    ncclResult_t state = progress(runtime, comm);
    if (comm->blocking)
      runtime.wait_until([&] {
        state = comm->aborted ? ncclInternalError : progress(runtime, comm);
        return state != ncclInProgress;
      });
    return state;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return call_nccl([&](Runtime& runtime) {
    if (!handle) return ncclSuccess;
    const CommunicatorPointer comm = find(handle);
    if (comm->first_operation) std::exchange(comm->first_operation, nullptr)();
    runtime.wait_until([&] { return comm->running.empty() || comm->aborted; });
    wait_for_graphs(runtime, *comm, "ncclCommDestroy");
    comm->destroyed = true;
    take_back(handle);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return call_nccl([&](Runtime& runtime) {
    if (!handle) return ncclSuccess;
    const CommunicatorPointer comm = find(handle);
    comm->aborted = true;
    comm->first_operation = nullptr;
    take_back(handle);
    runtime.run_all_that_can();  // what waited for other ranks ends
    wait_for_graphs(runtime, *comm, "ncclCommAbort");
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return call_nccl([&](Runtime& runtime) {
    require(count != nullptr, ncclInvalidArgument, "no place for the count");
    *count = find_ready(runtime, comm)->size;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return call_nccl([&](Runtime& runtime) {
    require(device != nullptr, ncclInvalidArgument, "no place for the device");
    *device = find_ready(runtime, comm)->device;
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return call_nccl([&](Runtime& runtime) {
    require(rank != nullptr, ncclInvalidArgument, "no place for the rank");
    *rank = find_ready(runtime, comm)->rank;
    return ncclSuccess;
  });
}
