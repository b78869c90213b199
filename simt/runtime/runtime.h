#pragma once
/// The state behind the runtime API: devices, memory, streams, events. Everything in it is guarded
/// by one lock, which `call_runtime` (call.h) takes; kernels run with it held.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/simt/execution/executor.h"
#include "lockstep/simt/include/simt/runtime_api.h"
#include "lockstep/simt/runtime/shared_file.h"
#include "lockstep/simt/simt.h"

namespace simt::detail {

using Stream = ::CUstream_st;

/// Thrown inside a call of the runtime: the error that it returns.
struct Refusal {
  cudaError_t error;
};
inline void require(bool condition, cudaError_t error) {
  if (!condition) throw Refusal{error};
}

/// One operation's end, for those that wait for it.
struct Mark {
  Stream* stream;
  bool done = false;
  /// Of host threads that ask again and again: since when, and what had moved then.
  std::optional<std::chrono::steady_clock::time_point> asked_since = std::nullopt;
  std::uint64_t moves_then = 0;
  std::chrono::steady_clock::time_point time{};  ///< of its end
};
using MarkPointer = std::shared_ptr<Mark>;

/// One run of an operation: each call does what can be done now and tells whether that was all. If
/// it was not, the rest waits for something that no stream of this process knows of, as a value in
/// memory that another process writes, and the call is repeated until it is there.
using Run = std::function<bool()>;

/// How an operation can wait in its stream for something that is no operation's end.
struct Waits {
  bool in_queue = false;    ///< what is behind it in its hardware queue waits too
  std::string awaits = {};  ///< for what, if only streams of this process can bring it
};

/// What a stream does: when the operations before it in the stream and those in `after` have ended,
/// it runs.
struct Operation {
  Run run = nullptr;  ///< null: nothing to do but wait
  std::vector<MarkPointer> after = {};
  MarkPointer mark = nullptr;
  std::optional<Waits> waits = {};
  bool begun = false;        ///< it has run, and not ended yet
  std::uint64_t ticket = 0;  ///< 1, 2, ... in the order in which the device got its operations
  /// Of a host function: the host thread that enqueued it. It may wait for others, so they run it
  /// only if they wait for it.
  std::thread::id host_function_of = {};
};

/// A piece of memory that the runtime knows: it made it, or was told of it.
struct Allocation {
  enum class Kind { device, pinned, registered };
  /// Where it comes from: a malloc of the exact size; pages of its own, which can be shared;
  /// another process, whose pages they are; the user, who registered it.
  enum class Source { heap, pages, opened, user };

  Allocation(Kind kind, Source heap_or_pages, int device, std::size_t bytes);
  Allocation(void* registered, int device, std::size_t bytes);
  Allocation(SharedFile opened, int device, std::size_t bytes);
  ~Allocation();
  /// That holds [data, data + bytes), also one that has been freed while streams may use it; or
  /// null.
  static const Allocation* holding(const void* data, std::size_t bytes = 1);
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  void fill_with_nan() const;
  /// Opened memory: from now on this process sees a copy, and nobody else what it writes there.
  void lose_what_is_written() const;
  /// Pages: from now on other processes can find it, where it is.
  SharedName share();

  Kind kind;
  Source source;
  int device;
  std::size_t bytes;
  std::byte* data;
  std::optional<SharedFile> shared = std::nullopt;  ///< pages that were shared, or opened
  // Memory that a graph allocates when it is launched (capture.h):
  bool of_graph = false;
  bool live = true;             ///< false: before the launch, and once freed
  bool freed_by_graph = false;  ///< by a node of the same graph
};
using AllocationPointer = std::shared_ptr<Allocation>;

/// Another process's memory, and how often it has been opened (ipc.cpp).
struct OpenedMemory {
  SharedName name;
  std::byte* data;
  int times;
};

struct Capture;       // capture.h
struct GraphContent;  // capture.h

/// What is known of a kernel on one device.
struct KernelSettings {
  bool loaded = false;                          ///< it has been launched, or asked for
  std::size_t dynamic_shared_limit = 48 << 10;  ///< cudaFuncSetAttribute raises it
  bool non_portable_clusters = false;           ///< cudaFuncSetAttribute allows them
};

struct Device {
  std::string fault;  ///< why its context is broken; empty: it is not
  std::size_t used = 0, most_used = 0;
  std::uint64_t launches = 0;
  std::uint64_t release_threshold = 0;
  std::vector<int> peers;
  std::map<const void*, KernelSettings> kernels;
  std::uint64_t operations = 0;  ///< enqueued so far
  std::uint64_t moves = 0;       ///< operations that have ended, and parts of them
  int streams = 0;               ///< made so far
  Stream* null_stream = nullptr;
};

}  // namespace simt::detail

struct CUstream_st {
  int device;
  int number;      ///< 0, 1, ... in the order in which the device's streams were made
  int connection;  ///< the hardware queue through which its operations go
  bool blocking;   ///< waits for the legacy default stream, and it for this one
  int priority;    ///< is kept for who asks: it changes no order
  int pace;  ///< late mode: it moves at one in `pace` calls by itself; 0: only when waited for
  std::deque<simt::detail::Operation> queue;
  simt::detail::MarkPointer last;  ///< of the operation enqueued last; null: none yet
  bool busy = false;               ///< its first operation is running (the lock may be open)
  bool destroyed = false;          ///< the handle is gone; what was enqueued still runs
  std::shared_ptr<simt::detail::Capture> capture;
};

struct CUevent_st {
  int device;
  bool timed;
  simt::detail::MarkPointer record;                ///< the latest; null: never recorded
  std::shared_ptr<simt::detail::Capture> capture;  ///< it was recorded last in this capture
  std::vector<int> captured_after;                 ///< the nodes before it there
};

struct CUgraph_st {
  std::shared_ptr<simt::detail::GraphContent> content;
};

struct CUgraphExec_st {
  std::shared_ptr<simt::detail::GraphContent> content;
  bool free_on_launch;
  simt::detail::MarkPointer last = nullptr;  ///< the end of its latest launch; null: none yet
};

namespace simt::detail {

class Runtime {
 public:
  static Runtime& get();

  std::mutex mutex;
  std::condition_variable changed;  ///< an operation has ended

  // ---- settings and devices ----
  Config config;
  /// Why every call fails: a variable has a bad value, or this process was forked from one that had
  /// used CUDA.
  std::string unusable;
  bool used = false;       ///< by a call, of whatever kind
  bool unloading = false;  ///< the process is ending
  std::deque<std::string>
      reports;  ///< of kernels that failed; kept, for their texts are handed out
  void apply(const Config& wanted);
  Device& device(int index);  ///< made when first asked for
  /// From now on each call for this device fails, and says why.
  void break_device(int index, std::string report);
  /// Throws the error of a call that uses something of a device whose context is broken.
  void require_sound(int index) { require(device(index).fault.empty(), cudaErrorLaunchFailure); }
  static int current_device();

  // ---- streams (stream.cpp) ----
  Stream& stream(cudaStream_t handle);  ///< of a handle, checked; null: the current device's
  Stream* make_stream(int device, unsigned flags, int priority = 0);
  void enqueue(Stream& stream, Operation operation);
  /// `call`: one that may be in a program by accident: a deadlock breaks the device (deadlock.cpp).
  void wait(const MarkPointer& mark, const char* call = nullptr);
  void wait_for(Stream& stream);
  void wait_for_device(int device, const char* call = nullptr);
  void wait_for_all(const char* call = nullptr);
  /// Waits for something that is no operation's end; `there` is called with the lock held.
  void wait_until(const std::function<bool()>& there);
  /// On a GPU this call may wait for all work of the current device; `assumed`: no document says
  /// so. Here it waits for that of streams which wait for memory: this finds programs in which it
  /// would wait for ever.
  enum class Source { documented, assumed };
  void may_synchronize(const char* call, Source source = Source::assumed);
  /// Waits while another host thread's call waits for a device: it may hold the driver's lock.
  void wait_for_holder();
  /// Some call looks: late mode: streams may move; eager: those go on that waited for memory.
  void drift();
  void nudge(const MarkPointer& mark);  ///< a host thread asks for it; late mode: it moves on
  void run_all_that_can();
  /// Said by an operation that has done a part of its work: another look may find more of it.
  void moved() { ++moves_; }
  bool idle(const Stream& stream) const;
  void drop_queues();
  /// Runs something that may take other locks: a host function of the user's.
  void unlocked(const std::function<void()>& function);

  // ---- memory (memory.cpp) ----
  AllocationPointer allocate(Allocation::Kind kind, int device, std::size_t bytes,
                             Allocation::Source source = Allocation::Source::heap);
  AllocationPointer find(const void* data, std::size_t bytes = 1) const;  ///< null: not known
  AllocationPointer take(void* data);  ///< forgets it: it must be the beginning of one
  /// Whether kernels and streams of the device may touch it. (Copies may without peer access.)
  bool can_access(int device, const Allocation& memory) const;
  std::map<std::uintptr_t, AllocationPointer> allocations;
  std::vector<OpenedMemory> opened;

  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::vector<std::unique_ptr<CUgraph_st>> graphs;
  std::vector<std::unique_ptr<CUgraphExec_st>> graph_execs;
  std::vector<std::shared_ptr<Capture>> captures;  ///< under way
  /// Adds what another library of the simulator has made, for living().
  std::vector<std::function<void(std::map<std::string, std::size_t>&)>> count_living;

 private:
  Runtime();
  void draw_pace(Stream& stream);
  void deal_connection(Stream& stream) const;
  bool runnable(const Stream& stream) const;
  /// The stream whose operation is in front of this one's first in its hardware queue; or null.
  Stream* in_front_of(const Stream& stream) const;
  static bool for_this_thread(const Stream& stream);
  bool run_first(Stream& stream);
  std::vector<Stream*> streams_needed_for(const Mark& mark) const;
  bool step_towards(const Mark& mark);
  void open_lock_for(std::chrono::microseconds time);
  void forget_destroyed_streams();

  Random delays_{0};
  // ---- deadlocks (deadlock.cpp) ----
  /// This thread's call waits for a device until the result ends.
  std::shared_ptr<void> hold();
  bool stuck(Mark& mark) const;
  void break_if_deadlocked(const Mark& mark, const char* call);

  std::uint64_t moves_ = 0;
  std::uint64_t looks_ = 0;  // calls that only look (drift()), since something was enqueued
  std::optional<std::thread::id> holder_;  // cautious: whose call waits for a device
  std::vector<std::unique_ptr<Device>> devices_;
};

/// Memory of cudaMalloc goes without a wait for what still uses it, as when it is unmapped.
cudaError_t free_at_once(void* data);

}  // namespace simt::detail
