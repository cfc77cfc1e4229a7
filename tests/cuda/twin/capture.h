// Stream capture and the resulting graphs.
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
  size_t chain;               // number of its stream in the capture
};

struct Capture {
  int mode;  // which calls it forbids: 0 global, 1 thread-local, 2 relaxed
  std::thread::id thread;
  std::vector<Stream*> streams;  // the first is the one it began in
  std::vector<Node> nodes = {};
  bool valid = true;

  void add(Stream* stream, Record line, std::function<void()> run);
  bool joined() const;  // all nodes precede the end of the first stream
  int fail(int code);   // invalidate the capture; returns the code
};

// The position of a stream, or of a recorded event, in a capture.
struct Captured {
  std::shared_ptr<Capture> capture = nullptr;
  std::vector<size_t> behind = {};  // nodes
};

// Calls that a capture forbids, as a CUresult: an operation of `stream` (null: no such stream), a
// call that may wait for all streams, a wait for an event.
int usable(Device& d, Stream* stream);
int unsafe(Device& d);
int wait_captured(Device& d, Stream* stream, const Event& event);

using Nodes = std::shared_ptr<const std::vector<Node>>;
struct Graph {
  Nodes nodes;
};
struct Executable {
  Nodes nodes;
  bool own_priorities;  // nodes keep their priorities when launched
};

}  // namespace twin
