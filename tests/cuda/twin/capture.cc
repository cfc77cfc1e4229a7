// Stream capture and graphs.

#include "capture.h"

#include <algorithm>

#include "device_state.h"

using namespace twin;

namespace twin {

constexpr unsigned long long kUseNodePriority = 8;

void Capture::add(Stream* stream, Record line, std::function<void()> run) {
  const auto chain = std::find(streams.begin(), streams.end(), stream) - streams.begin();
  std::vector<size_t>& behind = stream->captured.behind;
  line.priority = stream->priority;
  nodes.push_back({std::move(line), std::move(run), behind, static_cast<size_t>(chain)});
  behind = {nodes.size() - 1};
}

bool Capture::joined() const {
  std::vector<bool> before(nodes.size(), false);
  for (const size_t last : streams.front()->captured.behind) before[last] = true;
  for (size_t i = nodes.size(); i-- > 0;)  // a node has a higher number than those it waits for
    if (before[i])
      for (const size_t other : nodes[i].after) before[other] = true;
  return std::all_of(before.begin(), before.end(), [](bool b) { return b; });
}

int Capture::fail(int code) {
  valid = false;
  return code;
}

int usable(Device& d, Stream* stream) {
  if (stream == nullptr) return kInvalidHandle;
  if (stream == d.queue.find(nullptr)) {  // the default stream waits for all blocking ones
    for (Capture* capture : d.captures)
      for (const Stream* other : capture->streams)
        if (other->blocking) return capture->fail(kCaptureImplicit);
    return kSuccess;
  }
  Capture* const capture = stream->captured.capture.get();
  if (capture == nullptr) return kSuccess;
  if (!capture->valid) return kCaptureInvalidated;
  const int code = d.error("capture");
  return code == 0 ? kSuccess : capture->fail(code);
}

int unsafe(Device& d) {
  for (Capture* capture : d.captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (capture->mode == 0 || (capture->mode == 1 && own))
      return capture->fail(kCaptureUnsupported);
  }
  return kSuccess;
}

// A capture may only wait for captured work, whose capture the waiting stream then joins.
int wait_captured(Device& d, Stream* stream, const Event& event) {
  Captured& own = stream->captured;
  const Captured& other = event.captured;
  if (own.capture == nullptr && other.capture == nullptr) return kSuccess;
  if (other.capture == nullptr)
    return event.recorded == nullptr ? kSuccess : own.capture->fail(kCaptureIsolation);
  if (d.captures.count(other.capture.get()) == 0) return kCapturedEvent;
  if (own.capture == nullptr) {
    own = other;
    own.capture->streams.push_back(stream);
    return kSuccess;
  }
  if (own.capture != other.capture) {
    other.capture->valid = false;
    return own.capture->fail(kCaptureMerge);
  }
  for (const size_t node : other.behind)
    if (std::find(own.behind.begin(), own.behind.end(), node) == own.behind.end())
      own.behind.push_back(node);
  return kSuccess;
}

}  // namespace twin

TWIN_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = d.queue.find(handle);
    if (stream == nullptr) return kInvalidHandle;
    if (mode < 0 || mode > 2) return kInvalidValue;
    if (handle == nullptr) return kCaptureUnsupported;
    if (stream->captured.capture != nullptr) return kIllegalState;
    if (const int code = d.error("cuStreamBeginCapture_v2")) return code;
    const auto capture =
        std::make_shared<Capture>(Capture{mode, std::this_thread::get_id(), {stream}});
    stream->captured = {capture, {}};
    d.captures.insert(capture.get());
    return kSuccess;
  });
}

TWIN_API CUresult cuStreamEndCapture(CUstream handle, CUgraph* result) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    Stream* const stream = d.queue.find(handle);
    if (stream == nullptr) return kInvalidHandle;
    if (result == nullptr) return kInvalidValue;
    *result = nullptr;
    const std::shared_ptr<Capture> capture = stream->captured.capture;
    if (capture == nullptr) return kIllegalState;
    if (stream != capture->streams.front()) return capture->fail(kCaptureUnmatched);
    if (capture->mode != 2 && capture->thread != std::this_thread::get_id())
      return capture->fail(kCaptureWrongThread);
    const bool joined = capture->joined();
    for (Stream* other : capture->streams) other->captured = {};
    d.captures.erase(capture.get());
    if (!capture->valid) return kCaptureInvalidated;
    if (!joined) return kCaptureUnjoined;
    if (const int code = d.error("cuStreamEndCapture")) return code;
    auto* const graph =
        new Graph{std::make_shared<const std::vector<Node>>(std::move(capture->nodes))};
    d.graphs.insert(graph);
    *result = reinterpret_cast<CUgraph>(graph);
    return kSuccess;
  });
}

TWIN_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* result, CUgraph handle,
                                              unsigned long long flags) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Graph* const graph = reinterpret_cast<Graph*>(handle);
    if (result == nullptr || (flags & ~kUseNodePriority) != 0) return kInvalidValue;
    if (d.graphs.count(graph) == 0) return kInvalidHandle;
    if (const int code = d.error("cuGraphInstantiateWithFlags")) return code;
    auto* const made = new Executable{graph->nodes, flags == kUseNodePriority};
    d.executables.insert(made);
    *result = reinterpret_cast<CUgraphExec>(made);
    return kSuccess;
  });
}

TWIN_API CUresult cuGraphDestroy(CUgraph handle) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    Graph* const graph = reinterpret_cast<Graph*>(handle);
    if (d.graphs.erase(graph) == 0) return kInvalidHandle;
    delete graph;
    return kSuccess;
  });
}

TWIN_API CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    Executable* const executable = reinterpret_cast<Executable*>(handle);
    if (d.executables.erase(executable) == 0) return kInvalidHandle;
    delete executable;  // running launches share ownership of the nodes
    return kSuccess;
  });
}

// A chain of operations for each captured stream, whose nodes wait for each other as captured: they
// run in any order that this allows, between operations of other streams.
TWIN_API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    const Executable* const executable = reinterpret_cast<Executable*>(handle);
    Stream* const stream = d.queue.find(stream_handle);
    if (d.executables.count(executable) == 0 || stream == nullptr) return kInvalidHandle;
    if (stream->captured.capture != nullptr)
      return stream->captured.capture->fail(kCaptureUnsupported);
    if (const int code = d.error("cuGraphLaunch")) return code;
    const std::vector<Node>& nodes = *executable->nodes;
    Record line = {.kind = "graph", .arguments = std::to_string(nodes.size())};
    const OperationPointer start = d.add(stream, std::move(line), [] {});
    std::map<size_t, Stream*> chains;
    std::vector<OperationPointer> made;
    for (const Node& node : nodes) {
      Stream*& chain = chains[node.chain];
      if (chain == nullptr) chain = d.queue.chain(stream->id, node.chain);
      std::vector<OperationPointer> after = {start};
      for (const size_t other : node.after) after.push_back(made[other]);
      Record of_node = node.line;
      if (!executable->own_priorities) of_node.priority = stream->priority;
      made.push_back(d.enqueue(chain, std::move(of_node), node.run, std::move(after),
                               d.settings.node_nanoseconds));
    }
    if (!made.empty()) d.queue.add(stream, [] {}, std::move(made));
    return kSuccess;
  });
}
