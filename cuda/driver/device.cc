#include "cuda/driver/device.h"

#include <utility>

#include "cuda/driver/context.h"

namespace cavs::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;                        // CU_STREAM_NON_BLOCKING
constexpr int kRelaxed = 2;                                 // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kMaxGridDimY = 6, kMultiprocessorCount = 16;  // the limit in z is no less
constexpr int kCooperativeLaunch = 95, kMaxSharedOptin = 97;
constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

}  // namespace

Device::Device(const std::string& library, int ordinal, Allocator allocator, DeviceOptions options,
               std::string install)
    : driver_(library, std::move(install)), allocator_(std::move(allocator)), options_(options) {
  const Driver& d = driver_;
  d.check(d.init(0), "cuInit");
  d.check(d.device_get(&device_, ordinal), "cuDeviceGet");
  for (const auto& [value, attribute] : {std::pair{&multiprocessors_, kMultiprocessorCount},
                                         {&max_grid_height_, kMaxGridDimY},
                                         {&cooperative_, kCooperativeLaunch},
                                         {&shared_bytes_, kMaxSharedOptin}}) {
    d.check(d.device_attribute(value, attribute, device_), "cuDeviceGetAttribute");
  }
  d.check(d.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  const CurrentContext here(*this);
  d.check(d.stream_priorities(&least_, &greatest_), "cuCtxGetStreamPriorityRange");
  for (int lane = 0; lane <= kMirror; ++lane) streams_[lane] = new_stream(lane);
  collectives_ = new_stream(kMirror);
  for (Handle* event : {&forked_, &joined_}) {
    d.check(d.event_create(event, kNoTiming), "cuEventCreate");
  }
}

Device::~Device() {
  // At process exit the driver may be gone before this object: errors are ignored.
  const CurrentContext here(*this, std::nothrow);
  if (!here) return;
  for (Handle stream : streams_) {
    if (stream != nullptr) driver_.stream_destroy(stream);
  }
  for (Handle stream : captured_) {
    if (stream != nullptr) driver_.stream_destroy(stream);
  }
  if (collectives_ != nullptr) driver_.stream_destroy(collectives_);
  for (Handle event : {forked_, joined_}) {
    if (event != nullptr) driver_.event_destroy(event);
  }
}

Handle Device::new_stream(int lane) const {
  Handle stream = nullptr;
  driver_.check(driver_.stream_create(&stream, kNonBlocking, lane == 0 ? greatest_ : least_),
                "cuStreamCreateWithPriority");
  return stream;
}

Address Device::allocate(size_t bytes) {
  Address address = 0;
  if (allocator_.allocate) {
    address = allocator_.allocate(bytes);
    // A memory pool over several GPUs may leave another one current.
    driver_.check(driver_.context_set(context_), "cuCtxSetCurrent");
    return address;
  }
  const int result = driver_.allocate(&address, bytes);
  if (result == 0) return address;
  size_t free = 0, total = 0;
  const bool known = driver_.memory(&free, &total) == 0;
  const std::string left =
      known ? ", " + std::to_string(free) + " free of " + std::to_string(total) : "";
  driver_.check(result, ("cuMemAlloc of " + std::to_string(bytes) + " bytes" + left).c_str());
  return 0;
}

void Device::release(Address address) noexcept {
  const CurrentContext here(*this, std::nothrow);
  if (allocator_.release) {
    drain();  // a pool may hand out the block again at once
    allocator_.release(address);
  } else if (here) {
    driver_.release(address);
  }
}

Handle Device::function(Handle module, const std::string& name) {
  Handle function = nullptr;
  driver_.check(driver_.module_function(&function, module, name.c_str()),
                ("cuModuleGetFunction of " + name).c_str());
  names_[function] = name;
  return function;
}

void Device::upload(Address to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  driver_.check(driver_.upload(to, from, bytes, stream()), "cuMemcpyHtoDAsync");
}

void Device::download(void* to, Address from, size_t bytes) {
  if (bytes == 0) return;
  driver_.check(driver_.download(to, from, bytes, stream()), "cuMemcpyDtoHAsync");
}

void Device::zero(Address at, size_t bytes) {
  if (bytes == 0) return;
  if (recording_ != nullptr) return recording_->zero(lane_, at, bytes);
  driver_.check(driver_.fill(at, 0, bytes, lane_stream(lane_)), "cuMemsetD8Async");
}

// Order lane `second` after the work given to lane `first` so far.
void Device::order(Handle event, int first, int second) {
  driver_.check(driver_.event_record(event, lane_stream(first)), "cuEventRecord");
  driver_.check(driver_.stream_wait(lane_stream(second), event, 0), "cuStreamWaitEvent");
}

void Device::fork() {
  if (!options_.second_stream) return;
  if (recording_ != nullptr) return recording_->fork();
  order(forked_, 0, 1);
}

void Device::join() {
  if (!options_.second_stream) return;
  if (recording_ != nullptr) return recording_->join();
  order(joined_, 1, 0);
}

void Device::synchronize() {
  issue_recorded();
  for (Handle stream : streams_) {
    driver_.check(driver_.stream_synchronize(stream), "cuStreamSynchronize");
  }
}

void Device::synchronize_lane() {
  issue_recorded();
  driver_.check(driver_.stream_synchronize(streams_[0]), "cuStreamSynchronize");
}

void Device::issue_recorded() {
  if (const Commands* commands = std::exchange(recording_, nullptr)) commands->issue(*this);
}

void Device::drain() const noexcept {
  const CurrentContext here(*this, std::nothrow);
  if (!here) return;
  for (Handle stream : streams_) driver_.stream_synchronize(stream);
}

void Device::check_kernels(const char* call) const {
  const std::string what = std::string("a kernel before ") + call;
  for (Handle stream : streams_) driver_.check(driver_.stream_synchronize(stream), what.c_str());
}

bool Device::works() const noexcept {
  const CurrentContext here(*this, std::nothrow);
  return here && driver_.stream_synchronize(streams_[0]) == 0;
}

void Device::recover() noexcept {
  lane_ = 0;
  recording_ = nullptr;
  drain();  // errors here repeat the failure, or recur later
}

void Device::call(Call call, const void* data, size_t bytes) {
  if (recording_ != nullptr) return recording_->call(lane_, call, data, bytes);
  call(data, lane_, lane_stream(lane_));
}

void Device::launch_kernel(Handle function, Grid grid, std::span<const Argument> arguments,
                           unsigned threads) {
  if (recording_ != nullptr) return recording_->launch(lane_, function, grid, arguments, threads);
  pointers_.clear();
  for (const Argument& a : arguments) pointers_.push_back(const_cast<void*>(a.at));
  const Handle stream = lane_stream(lane_);
  void** const values = pointers_.data();
  const int result = grid.cooperative
                         ? driver_.launch_cooperative(function, grid.x, grid.y, grid.z, threads, 1,
                                                      1, grid.shared, stream, values)
                         : driver_.launch(function, grid.x, grid.y, grid.z, threads, 1, 1,
                                          grid.shared, stream, values, nullptr);
  if (result == 0) return;
  const auto size = [](unsigned n) { return std::to_string(n); };
  const std::string blocks = size(grid.x) + " x " + size(grid.y) + " x " + size(grid.z);
  const std::string call = grid.cooperative ? "cuLaunchCooperativeKernel" : "cuLaunchKernel";
  driver_.check(result, (call + " of " + names_[function] + ", " + blocks).c_str());
}

bool Device::fits_at_once(Handle function, unsigned blocks, unsigned threads, size_t shared) const {
  if (shared > static_cast<size_t>(shared_bytes())) return false;
  driver_.check(driver_.function_attribute(function, kMaxDynamicShared, static_cast<int>(shared)),
                "cuFuncSetAttribute");
  int each = 0;
  driver_.check(driver_.occupancy(&each, function, static_cast<int>(threads), shared),
                "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return int64_t{each} * multiprocessors_ >= blocks;
}

Handle Device::capture(const Commands& commands) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (captured_[lane] == nullptr) captured_[lane] = new_stream(lane);
  }
  driver_.check(driver_.capture_begin(captured_[0], kRelaxed), "cuStreamBeginCapture");
  capturing_ = true;
  std::exception_ptr failure;
  try {
    commands.issue(*this);
  } catch (...) {
    failure = std::current_exception();
    lane_ = 0;
  }
  capturing_ = false;
  Handle graph = nullptr;
  const int result = driver_.capture_end(captured_[0], &graph);  // a failed capture must end, too
  if ((failure || result != 0) && graph != nullptr) driver_.graph_destroy(graph);
  if (failure) std::rethrow_exception(failure);
  driver_.check(result, "cuStreamEndCapture");
  return graph;
}

}  // namespace cavs::cuda
