#include "cuda/replay/graph.h"

#include "cuda/driver/context.h"

namespace cavs::cuda {
namespace {

// CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY: kernels keep the priority of the lane on which
// they were captured, instead of that of the launching stream.
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

// The driver keeps a graph that is running until it is done.
Graph::~Graph() {
  const CurrentContext here(*device_, std::nothrow);
  if (executable_ != nullptr && here) device_->driver().executable_destroy(executable_);
}

void Graph::launch() {
  const Driver& d = device_->driver();
  d.check(d.graph_launch(executable_, device_->stream()), "cuGraphLaunch");
}

}  // namespace cavs::cuda
