// Streams that are captured, and the graphs that come of it.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "record.h"

namespace twin {

class Device;
struct Stream;
struct Event;

// An operation of a captured stream.
struct Node {
  Record line;
  std::function<void()> run;
  std::vector<size_t> after;  // other nodes
  size_t chain;               // its stream's place in the capture
};

struct Capture {
  int mode;  // 0 global, 1 of a thread, 2 relaxed: whose other calls it forbids
  std::thread::id thread;
  std::vector<Stream*> streams;  // the first is the one it began in
  std::vector<Node> nodes = {};
  bool valid = true;

  void add(Stream* stream, Record line, std::function<void()> run);
  bool joined() const;  // all nodes come before the end of the first stream
  int fail(int code);   // nothing comes of it any more; the code
};

// Where a stream stands in a capture, or stood when an event was recorded.
struct Captured {
  std::shared_ptr<Capture> capture = nullptr;
  std::vector<size_t> behind = {};  // nodes
};

// What capturing forbids, as a CUresult: an operation of `stream` (null: there is no such stream),
// calls that may wait for all streams, waits for an event.
int usable(Device& d, Stream* stream);
int unsafe(Device& d);
int wait_captured(Device& d, Stream* stream, const Event& event);

using Nodes = std::shared_ptr<const std::vector<Node>>;
struct Graph {
  Nodes nodes;
};
struct Executable {
  Nodes nodes;
  bool own_priorities;  // of the nodes, not that of the stream where it is launched
};

}  // namespace twin
