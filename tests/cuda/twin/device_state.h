// The device of a twin: the state of the driver's and the libraries' entry points.
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
  std::shared_ptr<double> seconds;  // time at which the record ran
  Captured captured = {};
};

struct Settings {
  long long init_error = 0;  // result of cuInit
  long long devices = 1;
  long long driver_version = 12080;
  long long capability = 90;
  long long multiprocessors = 4;   // few, so that grids made for them stay small
  long long blocks_each = 1;       // blocks of a cooperative launch per multiprocessor
  long long cooperative = 1;       // supports cooperative launches
  long long shared_optin = 0;      // most shared bytes per block, on request; 0: by capability
  long long grid_y = 65535;        // most blocks in y, and in z
  long long launch_error = 0;      // fault of launch number launch_error_at
  long long launch_error_at = 0;   // counted from 1 since it was set; 0: none
  long long exact_algorithms = 0;  // algorithms of cuBLASLt accept only their own sizes
  // Status of cuBLASLt (0: success) for leading dimensions that are no multiples of 4, and for
  // products with an algorithm of other sizes that passed its check.
  long long odd_strides = 0;
  long long other_sizes = 0;
  // Run all issued operations when a library is called.
  long long device_keeps_up = 0;
  long long cudnn_version = 90800;
  long long cudnn_error = 5000;  // result of call number cudnn_error_at
  long long cudnn_error_at = 0;  // counted like launch_error_at
  // Duration of an operation on the clock of events, alone and in a graph; both 0: the host's
  // clock.
  long long command_nanoseconds = 0;
  long long node_nanoseconds = 0;
  std::map<std::string, long long> errors = {};  // results of entry points; "capture": of
                                                 // operations of a captured stream
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
  std::set<const Function*> functions;  // functions of all modules
  std::set<Capture*> captures;          // in progress
  std::set<Graph*> graphs;
  std::set<const Executable*> executables;
  Fault fault;                                  // a kernel's; every later call returns its code
  std::deque<std::shared_ptr<Record>> records;  // the latest of the log
  long long issued = 0, ran = 0;

  Device() { set_defaults(); }
  void set_defaults();
  // Set a setting by name, or "memory" (bytes) or "seed"; false for an unknown name.
  bool set(const std::string& name, long long value);
  void reset();
  void fail(const Fault& what);

  // Queue `run` on the stream, with its line in the log. In a captured stream it becomes a node
  // instead, and the result is null.
  OperationPointer add(Stream* stream, Record record, std::function<void()> run,
                       OperationPointer after = nullptr);
  // The running operation reads or writes device memory; false for a race, which is a fault.
  bool touch(const void* address, size_t bytes, bool write);
  OperationPointer enqueue(Stream* stream, Record record, std::function<void()> run,
                           std::vector<OperationPointer> after, long long nanoseconds);
  int error(const std::string& name) const;  // requested by a test, or 0
  long long most_shared() const;             // bytes per block, on request
  double seconds() const;                    // on the clock of events
  // The host waits for `target`; null: there is nothing to wait for.
  void wait(Record record, const OperationPointer& target);
  std::shared_ptr<Record> log(Record record);  // adds a line
  long long clock = 0;                         // nanoseconds of finished operations
  long long launches = 0;                      // launches since launch_error_at was set
  long long cudnn_calls = 0;                   // calls since cudnn_error_at was set
  long long heuristics = 0;                    // requests to cuBLASLt
};

Device& device();

// Prologue of every entry point: one call at a time, an initialised driver, a context on the
// thread, no earlier fault. Releases succeed even after a fault.
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
