// A CUDA device: its context, streams, functions and launches.
#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/driver/commands.h"
#include "cuda/driver/driver.h"

namespace cavs::cuda {

// Source of device memory; the driver itself by default.
struct Allocator {
  std::function<Address(size_t)> allocate;
  std::function<void(Address)> release;
};

// Switches and thresholds, for tests and ablations.
struct DeviceOptions {
  bool second_stream = true;  // run independent sums concurrently with a loop
  int few_rows = 127;         // products of up to so many rows use tiles of 16 rows
  int blas_rows = 128;        // products of as many rows and more go to cuBLASLt
  int narrow_rows = 128;      // tasks of up to so many rows may run in one persistent kernel
  bool guards = false;        // surround values with guard bytes and check them after each run
};

constexpr unsigned kBlock =
    256;  // threads of a block, except where a kernel takes any number of warps

// Alignment of allocations within a block of device memory.
constexpr size_t kAlignment = 256;
inline size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

class Device {
 public:
  // install: see Driver.
  Device(const std::string& library, int ordinal, Allocator allocator, DeviceOptions options = {},
         std::string install = {});
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int multiprocessors() const { return multiprocessors_; }
  // Bytes of shared memory available to a block; 0 if the device has no cooperative launches.
  int shared_bytes() const { return cooperative_ ? shared_bytes_ : 0; }
  // True if a grid of `blocks` with `shared` bytes each can be resident at once, as cooperative
  // launches require. Raises the function's limit of dynamic shared memory to `shared`.
  bool fits_at_once(Handle function, unsigned blocks, unsigned threads, size_t shared) const;
  const DeviceOptions& options() const { return options_; }
  // Number of blocks in y or z, capped at the device's limit: kernels stride over the rest.
  unsigned grid_height(int64_t blocks) const {
    return static_cast<unsigned>(std::min<int64_t>(blocks, max_grid_height_));
  }

  Address allocate(size_t bytes);
  void release(Address address) noexcept;
  Handle function(Handle module, const std::string& name);

  // Work goes to the stream of the current lane, in order. Lane 1 runs concurrently with lane 0
  // between fork() and join(): it starts after the work given to lane 0 so far, and lane 0 goes on
  // after all of lane 1. Lane 0 has the higher priority, because everything waits for it. Uploads
  // of a batch and downloads during a run have lanes of their own, ordered by events.
  static constexpr int kLanes = 2, kCopies = kLanes, kMirror = kCopies + 1;
  // Stream for collectives, which wait for other processes; only Collectives waits for it.
  Handle collectives() const { return collectives_; }
  int lane() const { return lane_; }
  // Without a second stream the work of lane 1 goes to lane 0.
  void use_lane(int lane) { lane_ = lane == 1 && !options_.second_stream ? 0 : lane; }
  void fork();
  void join();
  void upload(Address to, const void* from, size_t bytes);
  void download(void* to, Address from, size_t bytes);
  void zero(Address at, size_t bytes);
  void synchronize();
  // Wait for lane 0 alone, and for the work that it waits for.
  void synchronize_lane();
  // synchronize() for destructors: errors are ignored, since after one nothing runs any more.
  void drain() const noexcept;
  // After a failure in a library: wait, then throw the fault of an earlier kernel if there was one.
  // A library that finds such a fault only reports that it cannot go on.
  void check_kernels(const char* call) const;
  // True if the device still works; after a kernel fault no call does any more.
  bool works() const noexcept;
  // The lock of DeviceLock alone, which does not need a working device.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // After a failure: reset lane and recording, and wait for earlier launches, which still write.
  void recover() noexcept;
  void launch_kernel(Handle function, Grid grid, std::span<const Argument> arguments,
                     unsigned threads);
  template <class... A>
  void launch(Handle function, Grid grid, const A&... arguments) {
    static_assert((kPlainBytes<A> && ...), "commands are compared byte by byte");
    const Argument list[] = {{&arguments, sizeof(A)}...};
    launch_kernel(function, grid, list, kBlock);
  }
  // Run work of a library on the current lane; see Call.
  void call(Call call, const void* data, size_t bytes);

  // From here on fork, join, zero, launch and call append to `commands` and are not run. A caller
  // that waits, or takes a stream for other work, first has the commands run; recording ends there.
  void record(Commands& commands) { recording_ = &commands; }
  void issue_recorded();
  // End the recording. True if `commands` is complete and none of it has run.
  bool stop_recording() { return std::exchange(recording_, nullptr) != nullptr; }
  // Return a graph of the driver that does the same as `commands`, owned by the caller, and run
  // nothing. Throws DeviceFault if the driver cannot capture it; the device stays usable.
  Handle capture(const Commands& commands);

  const Driver& driver() const { return driver_; }
  // Stream of a lane (by default the current one), for work that cannot be recorded.
  Handle stream(int lane) {
    issue_recorded();
    return lane_stream(lane);
  }
  Handle stream() { return stream(lane_); }

 private:
  friend class CurrentContext;
  friend class DeviceLock;
  Handle lane_stream(int lane) const {
    return capturing_ && lane < kLanes ? captured_[lane] : streams_[lane];
  }
  void order(Handle event, int first, int second);
  Handle new_stream(int lane) const;

  Driver driver_;
  std::mutex mutex_;
  int device_ = 0;
  int multiprocessors_ = 1, max_grid_height_ = 1, shared_bytes_ = 0, cooperative_ = 0;
  int least_ = 0, greatest_ = 0;  // stream priorities
  Handle context_ = nullptr;
  Handle streams_[kMirror + 1] = {}, collectives_ = nullptr;
  // Streams that capture the work of lanes 0 and 1; no other stream waits for them.
  Handle captured_[kLanes] = {};
  bool capturing_ = false;
  Commands* recording_ = nullptr;
  std::vector<void*> pointers_;                 // arguments of the launch under way
  Handle forked_ = nullptr, joined_ = nullptr;  // events
  int lane_ = 0;
  Allocator allocator_;
  const DeviceOptions options_;
  std::unordered_map<Handle, std::string> names_;  // function names, for messages
};

}  // namespace cavs::cuda
