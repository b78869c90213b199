/// Graphs: what becomes of a capture.

#include <algorithm>
#include <numeric>

#include "lockstep/kernels/simt/call.h"
#include "lockstep/kernels/simt/capture.h"
#include "lockstep/kernels/simt/poison.h"

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

/// In the order of capture, or any that `after` allows.
void replay(Runtime& runtime, const GraphContent& content, int device, Random* any_order) {
  const std::size_t count = content.nodes.size();
  std::vector<char> done(count);
  for (std::size_t step = 0; step < count; ++step) {
    std::size_t next = step;
    if (any_order) {
      std::vector<std::size_t> possible;
      for (std::size_t node = 0; node < count; ++node) {
        const auto& after = content.nodes[node].after;
        if (!done[node] &&
            std::all_of(after.begin(), after.end(), [&](int one) { return done[one]; }))
          possible.push_back(node);
      }
      next = possible[any_order->below(possible.size())];
    }
    content.nodes[next].run();
    done[next] = true;
    if (!runtime.device(device).fault.empty()) return;
  }
}

}  // namespace

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return call_runtime([&](Runtime& runtime) {
    require(exec != nullptr, cudaErrorInvalidValue);
    require((flags & ~cudaGraphInstantiateFlagAutoFreeOnLaunch) == 0, cudaErrorNotSupported);
    runtime.graph_execs.push_back(std::make_unique<CUgraphExec_st>(CUgraphExec_st{
        find(runtime, graph).content, (flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0}));
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
    const CUgraphExec_st& exec = find(runtime, handle);
    const auto content = exec.content;
    for (const AllocationPointer& memory : content->memory) {
      require(!memory->live || exec.free_on_launch, cudaErrorInvalidValue);
      memory->live = !memory->freed_by_graph;
    }
    const bool late = runtime.config.streams == simt::Streams::late;
    const std::uint64_t seed =
        runtime.config.stream_seed + ++runtime.device(stream.device).launches;
    submit(runtime, stream, cudaGraphNodeTypeKernel,
           [&runtime, content, device = stream.device, late, seed] {
             for (const AllocationPointer& memory : content->memory)
               poison(memory->data, memory->bytes);
             Random random(seed);
             replay(runtime, *content, device, late ? &random : nullptr);
           });
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
    *type = node->type;
  });
}
