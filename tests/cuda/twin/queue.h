// Streams: operations are queued and run when the host waits, in any order that streams and events
// allow.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "capture.h"
#include "order.h"

namespace twin {

struct Operation {
  std::function<void()> run;
  std::vector<std::shared_ptr<Operation>> after;  // operations of other streams
  uint64_t number = 0;                            // in issue order
  Place place = {};
  bool done = false;
};
using OperationPointer = std::shared_ptr<Operation>;

struct Stream {
  int id;
  bool blocking;     // synchronises with the default stream
  int priority = 0;  // smaller ones run first
  size_t chain = 0;  // a chain of a graph, from 1 on, or 0
  bool destroyed = false;
  std::deque<OperationPointer> pending = {};
  OperationPointer last = nullptr;
  Captured captured = {};
};

class Queue {
 public:
  explicit Queue(Order& order) : order_(order) {
    streams_.push_back(std::make_unique<Stream>(Stream{0, true}));
  }

  Stream* create(bool blocking, int priority);
  void destroy(Stream* stream) { stream->destroyed = true; }  // queued operations still run
  size_t live() const;               // streams that were created and not destroyed
  Stream* find(const void* handle);  // null handle: the default one; result nullptr: unknown
  // A chain of a graph launched on stream `id`, which is removed after its operations.
  Stream* chain(int id, size_t number);

  OperationPointer add(Stream* stream, std::function<void()> run,
                       std::vector<OperationPointer> after = {});
  void finish(const OperationPointer& target);   // null: nothing to wait for
  void advance(const OperationPointer& target);  // by one operation, of any stream
  void finish_all();
  void drop_all();  // after a fault nothing else runs
  // Report operations to `order` or not; all earlier ones have finished.
  void keep_order(bool on);

  // 0: issue order; else a random order that respects streams and their waits.
  void set_seed(uint64_t seed) {
    seed_ = seed;
    random_.seed(seed);
  }
  uint64_t draw() {
    return seed_ == 0 ? 0 : random_() | 1;
  }  // a seed for an operation, 0: in order

 private:
  void step(const Stream* target, unsigned policy);
  const Stream* stream_of(const OperationPointer& operation) const;  // that of a queued operation
  void waited(const Operation& operation) { order_.host_waited(operation.place); }
  unsigned policy();
  Order& order_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::mt19937_64 random_;
  uint64_t seed_ = 0, issued_ = 0;
  int next_id_ = 1;
};

}  // namespace twin
