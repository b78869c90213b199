/// Graphs: what becomes of a capture.

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/simt/execution/poison.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

using namespace simt::detail;

namespace {

CUgraph_st& find(Runtime& runtime, cudaGraph_t graph) {
  for (const auto& known : runtime.graphs)
    if (known.get() == graph) return *known;
  throw Refusal{cudaErrorInvalidValue};
}

CUgraphExec_st& find(Runtime& runtime, cudaGraphExec_t exec) {
  for (const auto& known : runtime.graph_execs)
    if (known.get() == exec) return *known;
  throw Refusal{cudaErrorInvalidValue};
}

/// One launch: runs nodes in the order of capture, or in any that `after` allows. A node that waits
/// for memory holds up those after it only.
class Replay {
 public:
  Replay(std::shared_ptr<GraphContent> content, int device, std::optional<Random> any_order)
      : content_(std::move(content)),
        device_(device),
        any_order_(any_order),
        done_(content_->nodes.size()) {
    for (const CUgraphNode_st& node : content_->nodes) runs_.push_back(node.begin());
  }

  /// As a Run.
  bool go_on(Runtime& runtime) {
    if (!std::exchange(begun_, true))
      for (const AllocationPointer& memory : content_->memory) poison(memory->data, memory->bytes);
    waiting_.assign(done_.size(), false);
    while (const std::optional<std::size_t> node = next()) {
      const bool ended = runs_[*node]();
      (ended ? done_ : waiting_)[*node] = true;
      if (ended) ++runtime.device(device_).moves;
      if (!runtime.device(device_).fault.empty()) return true;
    }
    return first_ == done_.size();
  }

 private:
  /// One that can run and has not been found waiting in this call.
  std::optional<std::size_t> next() {
    while (first_ < done_.size() && done_[first_]) ++first_;
    std::vector<std::size_t> possible;
    for (std::size_t node = first_; node < done_.size(); ++node) {
      const auto& after = content_->nodes[node].after;
      if (done_[node] || waiting_[node] ||
          !std::all_of(after.begin(), after.end(), [&](int one) { return done_[one]; }))
        continue;
      if (!any_order_) return node;
      possible.push_back(node);
    }
    if (possible.empty()) return std::nullopt;
    return possible[any_order_->below(possible.size())];
  }

  std::shared_ptr<GraphContent> content_;
  int device_;
  std::optional<Random> any_order_;
  std::vector<Run> runs_;
  std::vector<char> done_, waiting_;
  std::size_t first_ = 0;  ///< all before it are done
  bool begun_ = false;
};

/// A launch waits as its nodes do: for what the first of them waits, if all that wait do so for
/// streams of this process.
std::optional<Waits> waits_of(const GraphContent& content) {
  std::optional<Waits> waits;
  for (const CUgraphNode_st& node : content.nodes) {
    if (!node.waits) continue;
    if (node.waits->awaits.empty()) return Waits{};
    if (!waits) waits = Waits{.awaits = node.waits->awaits};
  }
  return waits;
}

}  // namespace

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return call_runtime([&](Runtime& runtime) {
    require(exec != nullptr, cudaErrorInvalidValue);
    require((flags & ~(cudaGraphInstantiateFlagAutoFreeOnLaunch |
                       cudaGraphInstantiateFlagUseNodePriority)) == 0,
            cudaErrorNotSupported);
    const auto content = find(runtime, graph).content;
    for (const auto& other : runtime.graph_execs)
      require(other->content != content || (content->memory.empty() && content->freed.empty()),
              cudaErrorInvalidValue);  // memory nodes: one executable graph at a time
    runtime.graph_execs.push_back(std::make_unique<CUgraphExec_st>(
        CUgraphExec_st{content, (flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0}));
    *exec = runtime.graph_execs.back().get();
  });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  return call_runtime([&](Runtime& runtime) {
    Stream& stream = runtime.stream(stream_handle);
    if (stream.capture) invalidate(*stream.capture, cudaErrorNotSupported);  // no child graphs
    CUgraphExec_st& exec = find(runtime, handle);
    const auto content = exec.content;
    for (const AllocationPointer& memory : content->freed)
      require(memory->live && runtime.find(memory->data) == memory, cudaErrorInvalidValue);
    for (const AllocationPointer& memory : content->freed) runtime.take(memory->data);
    for (const AllocationPointer& memory : content->memory) {
      require(!memory->live || exec.free_on_launch, cudaErrorInvalidValue);
      memory->live = !memory->freed_by_graph;
    }
    const bool late = runtime.config.streams == simt::Streams::late;
    const std::uint64_t seed =
        runtime.config.stream_seed + ++runtime.device(stream.device).launches;
    const auto replay = std::make_shared<Replay>(content, stream.device,
                                                 late ? std::optional(Random(seed)) : std::nullopt);
    // Launches of one executable graph run one after the other, whatever their streams.
    if (exec.last && !exec.last->done && exec.last->stream != &stream)
      runtime.enqueue(stream, {.after = {exec.last}});
    submit_run(
        runtime, stream, cudaGraphNodeTypeKernel,
        [&runtime, replay]() -> Run {
          return [&runtime, replay] { return replay->go_on(runtime); };
        },
        waits_of(*content));
    exec.last = stream.last;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call_runtime([&](Runtime& runtime) {
    const CUgraph_st& found = find(runtime, graph);
    std::erase_if(runtime.graphs, [&found](const auto& one) { return one.get() == &found; });
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return call_runtime([&](Runtime& runtime) {
    const CUgraphExec_st& found = find(runtime, exec);
    std::erase_if(runtime.graph_execs, [&found](const auto& one) { return one.get() == &found; });
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call_runtime([&](Runtime& runtime) {
    require(count != nullptr, cudaErrorInvalidValue);
    auto& all = find(runtime, graph).content->nodes;
    if (nodes)
      for (std::size_t i = 0; i < std::min(*count, all.size()); ++i) nodes[i] = &all[i];
    *count = all.size();
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return call_runtime([&](Runtime&) {
    require(node != nullptr && type != nullptr, cudaErrorInvalidValue);
    // Seen on an H200, CUDA 13.0: the runtime does not know the driver's kinds.
    require(node->type != batch_node, cudaErrorUnknown);
    *type = node->type;
  });
}
