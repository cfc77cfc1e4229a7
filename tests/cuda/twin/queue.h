// Streams: operations wait in queues and run when somebody waits for them, in any order that
// streams and events allow.
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
  std::vector<std::shared_ptr<Operation>> after;  // of other streams
  uint64_t number = 0;                            // in order of issue
  Place place = {};
  bool done = false;
};
using OperationPointer = std::shared_ptr<Operation>;

struct Stream {
  int id;
  bool blocking;     // waits for the default stream, and that for it
  int priority = 0;  // the smaller the sooner
  size_t chain = 0;  // of a graph, from 1 on; 0: of none
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
  void destroy(Stream* stream) { stream->destroyed = true; }  // what waits in it still runs
  size_t live() const;               // streams that were created and not destroyed
  Stream* find(const void* handle);  // null: the default one; nullptr: no such stream
  // A chain of a graph that stream `id` launches: nobody's, goes when what waits in it has run.
  Stream* chain(int id, size_t number);

  OperationPointer add(Stream* stream, std::function<void()> run,
                       std::vector<OperationPointer> after = {});
  void finish(const OperationPointer& target);   // null: nothing to wait for
  void advance(const OperationPointer& target);  // by one operation, of any stream
  void finish_all();
  void drop_all();  // after a fault nothing runs any more
  // Whether `order` is told of operations, which are all over.
  void keep_order(bool on);

  // 0: in the order of issue; else in a random order that keeps that of each stream and its waits.
  void set_seed(uint64_t seed) {
    seed_ = seed;
    random_.seed(seed);
  }
  uint64_t draw() { return seed_ == 0 ? 0 : random_() | 1; }  // a seed for what runs, 0: in order

 private:
  void step(const Stream* target, unsigned policy);
  const Stream* stream_of(const OperationPointer& operation) const;  // that waits
  void waited(const Operation& operation) { order_.host_waited(operation.place); }
  unsigned policy();
  Order& order_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::mt19937_64 random_;
  uint64_t seed_ = 0, issued_ = 0;
  int next_id_ = 1;
};

}  // namespace twin
