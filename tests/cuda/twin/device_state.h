// The one device of a twin: what the entry points of the driver and of cuBLASLt work on.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "block.h"
#include "capture.h"
#include "cuda_api.h"
#include "memory.h"
#include "queue.h"

namespace twin {

struct LoadedModule;
struct Function {
  LoadedModule* module;
  const Kernel* kernel;
  unsigned max_dynamic_shared = 48 << 10;
};
struct LoadedModule {
  void* library;
  const Module* module;
  std::map<std::string, Function> functions;
};
struct Event {
  bool timing;
  OperationPointer recorded;
  std::shared_ptr<double> seconds;  // when the record ran
  Captured captured = {};
};

struct Settings {
  long long init_error = 0;  // what cuInit returns
  long long devices = 1;
  long long driver_version = 12080;
  long long capability = 90;
  long long multiprocessors = 4;   // few, so that grids made for them stay small
  long long blocks_each = 1;       // of a cooperative launch that a multiprocessor holds
  long long cooperative = 1;       // whether there are such launches
  long long shared_optin = 0;      // most shared bytes a block, on request; 0: as of the capability
  long long grid_y = 65535;        // most blocks in y, and in z
  long long launch_error = 0;      // the launch number launch_error_at fails with it
  long long launch_error_at = 0;   // counted from 1 after it was set; 0: none
  long long exact_algorithms = 0;  // whether those of cuBLASLt take no smaller sizes than their own
  // What cuBLASLt says, 0: nothing amiss, to leading dimensions that are no multiples of 4, and to
  // a product by an algorithm of other sizes, though its check agrees.
  long long odd_strides = 0;
  long long other_sizes = 0;
  // Whether all that was asked for has run when a library is called.
  long long device_keeps_up = 0;
  long long cudnn_version = 90800;
  long long cudnn_error = 5000;  // what the call number cudnn_error_at returns
  long long cudnn_error_at = 0;  // counted as launch_error_at
  // What an operation takes on the clock of events, alone and as part of a graph; both 0: that of
  // the host.
  long long command_nanoseconds = 0;
  long long node_nanoseconds = 0;
  std::map<std::string, long long> errors = {};  // what entry points return, or "capture": what
                                                 // does an operation of a captured stream
};

class Device {
 public:
  std::recursive_mutex lock;
  Memory memory;
  Order order{memory};
  Queue queue{order};
  Settings settings;
  bool initialized = false;
  int context_count = 0;
  std::set<Event*> events;
  std::set<LoadedModule*> modules;
  std::set<const Function*> functions;  // of all modules
  std::set<Capture*> captures;          // under way
  std::set<Graph*> graphs;
  std::set<const Executable*> executables;
  Fault fault;                                  // of a kernel: every later call returns its code
  std::deque<std::shared_ptr<Record>> records;  // the latest of the log
  long long issued = 0, ran = 0;

  Device() { set_defaults(); }
  void set_defaults();
  // By the name of a setting, or "memory" (bytes of the device) and "seed"; false: no such name.
  bool set(const std::string& name, long long value);
  void reset();
  void fail(const Fault& what);

  // Queues `run` on the stream, with its line in the log.
  // In a captured stream it becomes a node, and there is no operation: null.
  OperationPointer add(Stream* stream, Record record, std::function<void()> run,
                       OperationPointer after = nullptr);
  // What runs reads or writes memory of the device; false: that races with something, a fault.
  bool touch(const void* address, size_t bytes, bool write);
  OperationPointer enqueue(Stream* stream, Record record, std::function<void()> run,
                           std::vector<OperationPointer> after, long long nanoseconds);
  int error(const std::string& name) const;  // that a test has asked for, or 0
  long long most_shared() const;             // bytes a block, on request
  double seconds() const;                    // of the clock of events
  // The host waits for `target`; null: there is nothing to wait for.
  void wait(Record record, const OperationPointer& target);
  std::shared_ptr<Record> log(Record record);  // its line
  long long clock = 0;                         // nanoseconds of what ran
  long long launches = 0;                      // since launch_error_at was set
  long long cudnn_calls = 0;                   // since cudnn_error_at was set
  long long heuristics = 0;                    // that cuBLASLt was asked for
};

Device& device();

// What every entry point does: one at a time, only with a driver that was initialised and a context
// of the calling thread, nothing more after a fault. What is released then is gone nevertheless.
enum class Needs { kNothing, kDriver, kContext, kRelease };
template <class Body>
CUresult entry(Needs needs, Body body);
CUcontext current();
void set_current(CUcontext context);

template <class Body>
CUresult entry(Needs needs, Body body) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> guard(d.lock);
  if (needs != Needs::kNothing && !d.initialized) return kNotInitialized;
  const bool in_context = needs == Needs::kContext || needs == Needs::kRelease;
  if (in_context && current() == nullptr) return kInvalidContext;
  if (needs == Needs::kContext && d.fault.code != 0) return d.fault.code;
  const CUresult result = body(d);
  return result == kSuccess && in_context ? d.fault.code : result;
}

}  // namespace twin
