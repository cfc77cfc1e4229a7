// The entry points of libcuda that the engine uses, with the signatures of cuda.h.

#include <algorithm>
#include <cstring>

#include "device_state.h"

using namespace twin;

namespace {

// One context per device, though all share memory and streams.
constexpr int kMostDevices = 16;
constexpr int kGreatestPriority = -5;  // smaller is greater
char contexts[kMostDevices];
CUcontext context_of(int ordinal) { return reinterpret_cast<CUcontext>(&contexts[ordinal]); }
bool is_context(CUcontext context) {
  const char* const at = reinterpret_cast<const char*>(context);
  return at >= contexts && at < contexts + kMostDevices;
}

Stream* stream_of(Device& d, CUstream handle) { return d.queue.find(handle); }

Event* event_of(Device& d, CUevent handle) {
  Event* const event = reinterpret_cast<Event*>(handle);
  return d.events.count(event) != 0 ? event : nullptr;
}

}  // namespace

TWIN_API CUresult cuInit(unsigned flags) {
  return entry(Needs::kNothing, [&](Device& d) -> CUresult {
    if (flags != 0) return kInvalidValue;
    if (d.settings.init_error != 0) return static_cast<CUresult>(d.settings.init_error);
    if (d.settings.devices == 0) return kNoDevice;
    d.initialized = true;
    return kSuccess;
  });
}

TWIN_API CUresult cuDriverGetVersion(int* version) {
  return entry(Needs::kNothing, [&](Device& d) -> CUresult {
    if (version == nullptr) return kInvalidValue;
    *version = static_cast<int>(d.settings.driver_version);
    return kSuccess;
  });
}

TWIN_API CUresult cuDeviceGet(CUdevice* result, int ordinal) {
  return entry(Needs::kDriver, [&](Device& d) -> CUresult {
    if (result == nullptr) return kInvalidValue;
    if (ordinal < 0 || ordinal >= d.settings.devices) return kInvalidDevice;
    *result = ordinal;
    return kSuccess;
  });
}

TWIN_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  return entry(Needs::kDriver, [&](Device& d) -> CUresult {
    const int capability = static_cast<int>(d.settings.capability);
    const std::map<int, int> values = {
        {1, 1024},  // threads per block
        {2, 1024},
        {3, 1024},
        {4, 64},  // block x, y, z
        {5, 2147483647},
        {6, static_cast<int>(d.settings.grid_y)},
        {7, static_cast<int>(d.settings.grid_y)},  // grid x, y, z
        {8, 49152},                                // shared bytes per block
        {10, 32},                                  // warp
        {12, 65536},                               // registers per block
        {16, static_cast<int>(d.settings.multiprocessors)},
        {31, 1},                               // concurrent kernels
        {38, 50 << 20},                        // second-level cache
        {39, capability >= 80 ? 2048 : 1024},  // threads per multiprocessor
        {41, 1},                               // unified addressing
        {75, capability / 10},
        {76, capability % 10},
        {81, capability >= 90 ? 233472 : 167936},  // shared bytes per multiprocessor
        {82, 65536},                               // registers per multiprocessor
        {95, static_cast<int>(d.settings.cooperative)},
        {97, static_cast<int>(d.most_shared())},  // shared bytes per block, on request
    };
    const auto found = values.find(attribute);
    if (value == nullptr || found == values.end()) return kInvalidValue;
    *value = found->second;
    return kSuccess;
  });
}

TWIN_API CUresult cuDeviceGetUuid_v2(unsigned char* uuid, CUdevice ordinal) {
  return entry(Needs::kDriver, [&](Device& d) -> CUresult {
    if (uuid == nullptr) return kInvalidValue;
    if (ordinal < 0 || ordinal >= d.settings.devices) return kInvalidDevice;
    std::memset(uuid, ordinal + 1, 16);
    return kSuccess;
  });
}

TWIN_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  return entry(Needs::kDriver, [&](Device& d) -> CUresult {
    if (context == nullptr) return kInvalidValue;
    if (ordinal < 0 || ordinal >= d.settings.devices || ordinal >= kMostDevices)
      return kInvalidDevice;
    *context = context_of(ordinal);
    return kSuccess;
  });
}

TWIN_API CUresult cuCtxSetCurrent(CUcontext context) {
  return entry(Needs::kDriver, [&](Device&) -> CUresult {
    if (context != nullptr && !is_context(context)) return kInvalidContext;
    set_current(context);
    return kSuccess;
  });
}

TWIN_API CUresult cuCtxGetCurrent(CUcontext* context) {
  return entry(Needs::kDriver, [&](Device&) -> CUresult {
    if (context == nullptr) return kInvalidValue;
    *context = current();
    return kSuccess;
  });
}

TWIN_API CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    if (address == nullptr || bytes == 0) return kInvalidValue;
    if (const int code = unsafe(d)) return code;
    const uintptr_t start = d.memory.allocate(bytes);
    if (start == 0) return kOutOfMemory;
    *address = start;
    return kSuccess;
  });
}

TWIN_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    if (free == nullptr || total == nullptr) return kInvalidValue;
    *total = d.memory.capacity;
    *free = *total - std::min(*total, d.memory.used());
    return kSuccess;
  });
}

TWIN_API CUresult cuMemFree_v2(CUdeviceptr address) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    if (const int code = unsafe(d)) return code;
    d.queue.finish_all();  // like a driver
    return address == 0 || d.memory.free(address) ? kSuccess : kInvalidValue;
  });
}

TWIN_API CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    if (address == nullptr || bytes == 0 || flags > 7) return kInvalidValue;
    if (const int code = unsafe(d)) return code;
    *address = reinterpret_cast<void*>(d.memory.allocate_pinned(bytes));
    return *address == nullptr ? kOutOfMemory : kSuccess;
  });
}

TWIN_API CUresult cuMemFreeHost(void* address) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    if (const int code = unsafe(d)) return code;
    d.queue.finish_all();
    return d.memory.free_pinned(reinterpret_cast<uintptr_t>(address)) ? kSuccess : kInvalidValue;
  });
}

TWIN_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                       CUstream handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = stream_of(d, handle);
    if (const int code = usable(d, stream)) return code;
    if (bytes == 0) return kSuccess;
    const auto source = reinterpret_cast<uintptr_t>(from);
    if (!d.memory.device(to, bytes)) return kInvalidValue;
    const Record record = {
        .kind = "copy", .name = "to device", .to = to, .from = source, .bytes = bytes};
    void* const target = reinterpret_cast<void*>(to);
    // A driver may copy pageable memory before the call returns, or the device may read it later.
    if (!d.memory.pinned(source, bytes) && stream->captured.capture != nullptr)
      return stream->captured.capture->fail(kCaptureUnsupported);
    d.add(stream, record, [=, &d] {
      if (d.touch(target, bytes, true)) std::memcpy(target, from, bytes);
    });
    return kSuccess;
  });
}

TWIN_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = stream_of(d, handle);
    if (const int code = usable(d, stream)) return code;
    if (bytes == 0) return kSuccess;
    const auto target = reinterpret_cast<uintptr_t>(to);
    if (!d.memory.device(from, bytes)) return kInvalidValue;
    const bool pageable = !d.memory.pinned(target, bytes);
    if (pageable && stream->captured.capture != nullptr)
      return stream->captured.capture->fail(kCaptureUnsupported);
    const Record record = {
        .kind = "copy", .name = "to host", .to = target, .from = from, .bytes = bytes};
    const void* const source = reinterpret_cast<const void*>(from);
    const auto copy = d.add(stream, record, [=, &d] {
      if (d.touch(source, bytes, false)) std::memcpy(to, source, bytes);
    });
    if (pageable) d.queue.finish(copy);  // copies to pageable memory are synchronous
    return kSuccess;
  });
}

TWIN_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                       CUstream handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = stream_of(d, handle);
    if (const int code = usable(d, stream)) return code;
    if (bytes == 0) return kSuccess;
    if (!d.memory.device(to, bytes) || !d.memory.device(from, bytes)) return kInvalidValue;
    const Record record = {
        .kind = "copy", .name = "on device", .to = to, .from = from, .bytes = bytes};
    void* const target = reinterpret_cast<void*>(to);
    const void* const source = reinterpret_cast<const void*>(from);
    d.add(stream, record, [=, &d] {
      if (d.touch(source, bytes, false) && d.touch(target, bytes, true))
        std::memmove(target, source, bytes);
    });
    return kSuccess;
  });
}

TWIN_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes,
                                  CUstream handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = stream_of(d, handle);
    if (const int code = usable(d, stream)) return code;
    if (bytes == 0) return kSuccess;
    if (!d.memory.device(to, bytes)) return kInvalidValue;
    const Record record = {.kind = "set", .to = to, .bytes = bytes};
    void* const target = reinterpret_cast<void*>(to);
    d.add(stream, record, [=, &d] {
      if (d.touch(target, bytes, true)) std::memset(target, value, bytes);
    });
    return kSuccess;
  });
}

TWIN_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return entry(Needs::kContext, [&](Device&) -> CUresult {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return kSuccess;
  });
}

TWIN_API CUresult cuStreamCreateWithPriority(CUstream* result, unsigned flags, int priority) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    if (result == nullptr || flags > 1) return kInvalidValue;
    const int within = std::clamp(priority, kGreatestPriority, 0);
    *result = reinterpret_cast<CUstream>(d.queue.create(flags == 0, within));
    return kSuccess;
  });
}

TWIN_API CUresult cuStreamCreate(CUstream* result, unsigned flags) {
  return cuStreamCreateWithPriority(result, flags, 0);
}

TWIN_API CUresult cuStreamDestroy_v2(CUstream handle) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    Stream* const stream = handle == nullptr ? nullptr : stream_of(d, handle);
    if (stream == nullptr) return kInvalidHandle;
    if (stream->captured.capture != nullptr)
      return stream->captured.capture->fail(kCaptureUnsupported);
    d.queue.destroy(stream);
    return kSuccess;
  });
}

TWIN_API CUresult cuStreamSynchronize(CUstream handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = stream_of(d, handle);
    if (stream == nullptr) return kInvalidHandle;
    if (stream->captured.capture != nullptr)
      return stream->captured.capture->fail(kCaptureUnsupported);
    d.wait({.kind = "synchronize", .stream = stream->id}, stream->last);
    return kSuccess;
  });
}

TWIN_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = stream_of(d, handle);
    const Event* const event = event_of(d, event_handle);
    if (stream == nullptr || event == nullptr) return kInvalidHandle;
    if (flags > 1) return kInvalidValue;
    if (const int code = usable(d, stream)) return code;
    if (stream->captured.capture != nullptr || event->captured.capture != nullptr)
      return wait_captured(d, stream, *event);
    d.add(
        stream, {.kind = "wait", .from = reinterpret_cast<uintptr_t>(event)}, [] {},
        event->recorded);
    return kSuccess;
  });
}

TWIN_API CUresult cuEventCreate(CUevent* result, unsigned flags) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    if (result == nullptr || flags > 7) return kInvalidValue;
    Event* const event = new Event{(flags & 2u) == 0, nullptr, nullptr, {}};
    d.events.insert(event);
    *result = reinterpret_cast<CUevent>(event);
    return kSuccess;
  });
}

TWIN_API CUresult cuEventDestroy_v2(CUevent handle) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    Event* const event = event_of(d, handle);
    if (event == nullptr) return kInvalidHandle;
    d.events.erase(event);
    delete event;
    return kSuccess;
  });
}

TWIN_API CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Stream* const stream = stream_of(d, stream_handle);
    Event* const event = event_of(d, handle);
    if (stream == nullptr || event == nullptr) return kInvalidHandle;
    if (const int code = usable(d, stream)) return code;
    event->captured = stream->captured;
    event->recorded = nullptr;
    if (stream->captured.capture != nullptr) return kSuccess;
    const auto seconds = event->seconds = std::make_shared<double>(0.0);
    event->recorded = d.add(stream, {.kind = "record", .to = reinterpret_cast<uintptr_t>(event)},
                            [&d, seconds] { *seconds = d.seconds(); });
    return kSuccess;
  });
}

TWIN_API CUresult cuEventSynchronize(CUevent handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    const Event* const event = event_of(d, handle);
    if (event == nullptr) return kInvalidHandle;
    if (event->captured.capture != nullptr) return kCapturedEvent;
    const auto address = reinterpret_cast<uintptr_t>(event);
    d.wait({.kind = "synchronize", .stream = -1, .from = address}, event->recorded);
    return kSuccess;
  });
}

TWIN_API CUresult cuEventQuery(CUevent handle) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    const Event* const event = event_of(d, handle);
    if (event == nullptr) return kInvalidHandle;
    if (event->captured.capture != nullptr) return kCapturedEvent;
    if (event->recorded == nullptr) return kSuccess;
    if (event->recorded->done) {
      d.queue.finish(event->recorded);  // later work is ordered after the event
      return kSuccess;
    }
    d.queue.advance(event->recorded);  // so that polling makes progress
    return kNotReady;
  });
}

TWIN_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    const Event *const from = event_of(d, start), *const to = event_of(d, end);
    if (milliseconds == nullptr) return kInvalidValue;
    for (const Event* event : {from, to})
      if (event == nullptr || !event->timing || event->recorded == nullptr) return kInvalidHandle;
    if (!from->recorded->done || !to->recorded->done) return kNotReady;
    *milliseconds = static_cast<float>((*to->seconds - *from->seconds) * 1e3);
    return kSuccess;
  });
}

TWIN_API CUresult cuGetErrorName(CUresult code, const char** text) {
  if (text == nullptr) return kInvalidValue;
  *text = error_name(code);
  return *text == nullptr ? kInvalidValue : kSuccess;
}

TWIN_API CUresult cuGetErrorString(CUresult code, const char** text) {
  if (text == nullptr) return kInvalidValue;
  *text = error_text(code);
  return *text == nullptr ? kInvalidValue : kSuccess;
}
