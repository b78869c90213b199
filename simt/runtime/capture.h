#pragma once
/// Stream capture and graphs. A captured operation becomes a node that knows the nodes it comes
/// after: those that its stream has done or, through events, waited for. A launch replays the nodes
/// as one operation of a stream: in the order of capture, or in late mode in any order that `after`
/// allows, so that an event missing between captured streams shows.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/simt/runtime/runtime.h"

namespace simt::detail {
/// Called when the host enqueues an operation, or launches a graph that it is a node of: what is to
/// be called when the stream is there. Each run has a state of its own.
using Begin = std::function<Run()>;
}  // namespace simt::detail

struct CUgraphNode_st {
  cudaGraphNodeType type;
  simt::detail::Begin begin;
  std::vector<int> after;  ///< indices of nodes
  std::optional<simt::detail::Waits> waits;
};

namespace simt::detail {

/// The kind of a node of cuStreamBatchMemOp: the driver's, which the runtime has no name for.
inline constexpr cudaGraphNodeType batch_node{12};

/// What a graph and its executable forms share; it does not change after the capture.
struct GraphContent {
  GraphContent() = default;
  GraphContent(const GraphContent&) = delete;
  GraphContent& operator=(const GraphContent&) = delete;
  /// Memory that is live then becomes ordinary memory; the rest is given back.
  ~GraphContent();

  std::vector<CUgraphNode_st> nodes;
  std::vector<AllocationPointer> memory;  ///< that its nodes allocate: addresses are for life
  std::vector<AllocationPointer> freed;   ///< of other graphs, that its nodes free
};

struct Capture {
  cudaStreamCaptureMode mode;
  unsigned long long id;
  std::thread::id thread = std::this_thread::get_id();
  Stream* origin;
  bool invalid = false;  ///< something that is not allowed was tried: it can only be ended
  bool ended = false;
  std::shared_ptr<GraphContent> content = std::make_shared<GraphContent>();
  std::map<const Stream*, std::vector<int>> ends;  ///< of each stream in it: its latest nodes

  void add(const Stream& stream, cudaGraphNodeType type, Begin begin, std::optional<Waits> waits);
  /// `stream` goes on after these nodes too.
  void join(const Stream& stream, const std::vector<int>& nodes);
  /// Does all work come before the end of the origin?
  bool is_joined() const;
};

/// Enqueues the operation, or captures it if the stream is capturing. Throws Refusal for the legacy
/// default stream while a stream that waits for it is capturing.
void submit(Runtime& runtime, Stream& stream, cudaGraphNodeType type, std::function<void()> run);
/// The same for one that may wait in the stream.
void submit_run(Runtime& runtime, Stream& stream, cudaGraphNodeType type, Begin begin,
                std::optional<Waits> waits = Waits{});

/// Throws the error; the capture can only be ended after that.
[[noreturn]] void invalidate(Capture& capture, cudaError_t error);

/// Its streams work again. `capture` is not one of the runtime's own pointers to it.
void end_capture(Runtime& runtime, const std::shared_ptr<Capture>& capture);

/// For calls that could wait for a device or change its memory at once: refuses them while they are
/// prohibited: by the mode of the calling thread and those of the captures.
void refuse_in_capture(Runtime& runtime);

}  // namespace simt::detail
