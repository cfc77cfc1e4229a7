#include "cuda/replay/graph.h"

namespace cavs::cuda {
namespace {

// CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: kernels have the priority of the lane that they
// were captured on, not all of them that of the stream where the graph runs.
constexpr unsigned long long kPriorityOfNodes = 8;

}  // namespace

Graph::Graph(std::shared_ptr<Device> device, const Commands& commands)
    : device_(std::move(device)) {
  const Driver& d = device_->driver();
  const Handle graph = device_->capture(commands);
  const int result = d.graph_instantiate(&executable_, graph, kPriorityOfNodes);
  d.graph_destroy(graph);
  d.check(result, "cuGraphInstantiate");
}

// The driver keeps what is under way until it is done.
Graph::~Graph() {
  const Current here(*device_, std::nothrow);
  if (executable_ != nullptr && here) device_->driver().executable_destroy(executable_);
}

void Graph::launch() {
  const Driver& d = device_->driver();
  d.check(d.graph_launch(executable_, device_->stream()), "cuGraphLaunch");
}

}  // namespace cavs::cuda
