// One device: its context, memory, streams and modules.
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

// Where memory of the device comes from; by default the driver itself.
struct Allocator {
  std::function<Address(size_t)> allocate;
  std::function<void(Address)> release;
};

// What may be switched off or moved, to see what it is worth.
struct Switches {
  bool beside = true;     // a second lane
  int few_rows = 127;     // up to these, products by tiles of 16 rows keep more blocks busy
  int blas_rows = 128;    // fewer are done by our kernels, which read weights once a tile
  int narrow_rows = 128;  // tasks of up to so many rows may be walked by one kernel
  bool guards = false;    // values stand apart, and whoever writes between them is told
};

constexpr unsigned kBlock = 256;  // threads of a block, unless a kernel takes any number of warps

// Places in device memory start at multiples of this.
constexpr size_t kLine = 256;
inline size_t lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

class Device {
 public:
  // install: as of Driver.
  Device(const std::string& library, int ordinal, Allocator allocator, Switches switches = {},
         std::string install = {});
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int multiprocessors() const { return multiprocessors_; }
  // Bytes of shared memory that a block may have; 0 where a grid cannot run all at once.
  int shared_bytes() const { return cooperative_ ? shared_bytes_ : 0; }
  // Whether a grid of `blocks` with so much shared memory each runs all at once; it may from here
  // on.
  bool runs_at_once(Handle function, unsigned blocks, unsigned threads, size_t shared) const;
  const Switches& switches() const { return switches_; }
  // Blocks of a grid in y or z, as many as it may have: kernels stride over what is left.
  unsigned high(int64_t blocks) const {
    return static_cast<unsigned>(std::min<int64_t>(blocks, most_high_));
  }

  Address allocate(size_t bytes);
  void release(Address address) noexcept;
  Handle function(Handle module, const std::string& name);

  // Work goes to the stream of the present lane, in order; lane 1 runs beside lane 0 between fork()
  // and join(): it starts after all that lane 0 has been given, and lane 0 goes on after all of it.
  // All waits for lane 0, whose kernels go first: what runs beside takes what they leave of the
  // GPU. What a batch brings goes up, and what leaves during a run comes down, on lanes of their
  // own, which events tie to the others.
  static constexpr int kLanes = 2, kCopies = kLanes, kMirror = kCopies + 1;
  // Collectives of others wait for other processes: nothing here waits for their stream but who
  // asks.
  Handle collectives() const { return collectives_; }
  int lane() const { return lane_; }
  // Without a second lane its work goes to the first.
  void use_lane(int lane) { lane_ = lane == 1 && !switches_.beside ? 0 : lane; }
  void fork();
  void join();
  void upload(Address to, const void* from, size_t bytes);
  void download(void* to, Address from, size_t bytes);
  void zero(Address at, size_t bytes);
  void synchronize();
  // Waits for lane 0 alone: for what it has been given, and what that waits for.
  void finish();
  // The same for all where nothing can be thrown: of what fails here nothing runs any more.
  void drain() const noexcept;
  // After a failure of a library: waits, then throws that of a kernel before the call, if there was
  // one. A library that meets it first knows only that it cannot go on.
  void check_kernels(const char* call) const;
  // Whether it still works; after a fault of a kernel no call does any more.
  bool answers() const noexcept;
  // A turn that does not need it to work.
  std::unique_lock<std::mutex> in_order() { return std::unique_lock(mutex_); }
  // After a failure: waits for what was launched before it, which would go on writing.
  void settle() noexcept;
  void launch_kernel(Handle function, Grid grid, std::span<const Argument> arguments,
                     unsigned threads);
  template <class... A>
  void launch(Handle function, Grid grid, const A&... arguments) {
    static_assert((kPlainBytes<A> && ...), "commands are compared byte by byte");
    const Argument list[] = {{&arguments, sizeof(A)}...};
    launch_kernel(function, grid, list, kBlock);
  }
  // Work of a library on the present lane; see Call.
  void call(Call call, const void* data, size_t bytes);

  // From here on fork, join, zero, launch and call are kept in `commands` instead of done. Whoever
  // waits or takes a stream for other work has them done first, and the rest done as it comes.
  void record(Commands& commands) { recording_ = &commands; }
  void issue_recorded();
  // Ends that. Whether `commands` has everything, of which nothing is done.
  bool recorded() { return std::exchange(recording_, nullptr) != nullptr; }
  // A graph of the driver that does what `commands` do, for the caller to destroy. Nothing is done.
  // DeviceFault where the driver cannot make it; the device goes on.
  Handle capture(const Commands& commands);

  const Driver& driver() const { return driver_; }
  // Of a lane, the present one if none is given, for work that cannot be kept.
  Handle stream(int lane) {
    issue_recorded();
    return lane_stream(lane);
  }
  Handle stream() { return stream(lane_); }

 private:
  friend class Current;
  friend class Turn;
  Handle lane_stream(int lane) const { return capturing_ ? captured_[lane] : streams_[lane]; }
  void order(Handle event, int first, int second);
  Handle new_stream(int lane) const;

  Driver driver_;
  std::mutex mutex_;
  int device_ = 0;
  int multiprocessors_ = 1, most_high_ = 1, shared_bytes_ = 0, cooperative_ = 0;
  int least_ = 0, greatest_ = 0;  // priorities
  Handle context_ = nullptr;
  Handle streams_[kMirror + 1] = {}, collectives_ = nullptr;
  // Of lanes 0 and 1 while their work is captured: nobody else waits for these streams.
  Handle captured_[kLanes] = {};
  bool capturing_ = false;
  Commands* recording_ = nullptr;
  std::vector<void*> pointers_;                 // arguments of a launch
  Handle forked_ = nullptr, joined_ = nullptr;  // events
  int lane_ = 0;
  Allocator allocator_;
  const Switches switches_;
  std::unordered_map<Handle, std::string> names_;  // of functions, for messages
};

// Makes a device current on the calling thread, for as long as this lives; the context that was
// current before, which may be another library's, is so again afterwards.
class Current {
 public:
  explicit Current(const Device& device);
  // Where nothing can be thrown: false if the driver is gone.
  Current(const Device& device, std::nothrow_t) noexcept;
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  const Device& device_;
  Handle before_ = nullptr;
  bool entered_ = false;
};

// A thread's turn on a device, whose streams, lanes and workspaces all its users share. If it ends
// by an exception, what it launched is over before the next one's. Whoever waits for a turn must
// not hold Python's lock: the thread whose turn it is may need that to allocate.
class Turn {
 public:
  explicit Turn(Device& device) : device_(device), lock_(device.mutex_), current_(device) {}
  ~Turn() {
    if (std::uncaught_exceptions() > exceptions_) device_.settle();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Device& device_;
  const std::lock_guard<std::mutex> lock_;
  const Current current_;
  const int exceptions_ = std::uncaught_exceptions();
};

// Memory of the device that grows and never shrinks. Growing drops what it held.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void reserve(size_t bytes);
  Address at(size_t offset = 0) const { return address_ + offset; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(address_);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  Address address_ = 0;
  size_t bytes_ = 0;
};

// The same, of page-locked memory of the host: copies from it need no staging. It goes when no copy
// uses it any more.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void reserve(size_t bytes);
  template <class T>
  T* at(size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Compiled kernels, loaded. Unloaded with the object, once none of them runs.
class Module {
 public:
  Module(std::shared_ptr<Device> device, const std::string& image);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Handle function(const std::string& name) const { return device_->function(module_, name); }

 private:
  std::shared_ptr<Device> device_;
  Handle module_ = nullptr;
};

// A point in the work of a lane, for waits; `timing`: and for clocks.
class Event {
 public:
  Event(std::shared_ptr<Device> device, bool timing);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record();                   // where the present lane stands
  void record(Handle stream);      // or a stream
  void wait() const;               // the present lane goes on after it
  void wait(Handle stream) const;  // or a stream
  bool reached() const;
  void synchronize() const;                        // the host does
  double seconds_since(const Event& start) const;  // after a synchronize

 private:
  std::shared_ptr<Device> device_;
  Handle event_ = nullptr;
};

}  // namespace cavs::cuda
