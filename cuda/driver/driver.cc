#include "cuda/driver/driver.h"

#include <dlfcn.h>

namespace cavs::cuda {
namespace {

// CUresult values.
constexpr int kOutOfMemory = 2, kNotInitialized = 3, kInvalidImage = 200, kNoBinary = 209;
constexpr int kTooManyBlocks = 720;                 // for a cooperative launch
constexpr int kFirstFault = 700, kLastFault = 719;  // kernel faults, which every later call repeats

std::string cure_of(int result, const std::string& install) {
  if (result >= kFirstFault && result <= kLastFault) {
    return "this is a bug of cavs; device='cpu' goes on working, the GPU in a new process";
  }
  switch (result) {
    case kOutOfMemory:
      return "use smaller batches, or free what else is on the device";
    case kNotInitialized:
      return "a fork of a process that used the GPU cannot use it: start processes by spawn";
    case kInvalidImage:
    case kNoBinary:
      return "remove the cache of compiled kernels, which cavs info names; if that does not "
             "help, " +
             install + " --upgrade";
    case kTooManyBlocks:
      return "others hold a part of the GPU: free it, or use a cavs.cuda.Device with "
             "persistent='never'";
    default:
      return "run nvidia-smi; device='cpu' goes on working";
  }
}

}  // namespace

Driver::Driver(const std::string& library, std::string line) : install(std::move(line)) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw DeviceFault(std::string("the CUDA driver cannot be loaded: ") + dlerror(),
                      "install NVIDIA's driver, or use device='cpu'");
  }
  const auto find = [&](auto& entry, const char* name) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) {
      throw DeviceFault("the CUDA driver " + library + " has no " + name,
                        "update NVIDIA's driver, then " + install + "; without it: device='cpu'");
    }
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(symbol);
  };
  find(init, "cuInit");
  find(driver_version, "cuDriverGetVersion");
  find(device_get, "cuDeviceGet");
  find(device_attribute, "cuDeviceGetAttribute");
  find(primary_retain, "cuDevicePrimaryCtxRetain");
  find(context_get, "cuCtxGetCurrent");
  find(context_set, "cuCtxSetCurrent");
  find(module_load, "cuModuleLoadData");
  find(module_unload, "cuModuleUnload");
  find(module_function, "cuModuleGetFunction");
  find(launch, "cuLaunchKernel");
  find(launch_cooperative, "cuLaunchCooperativeKernel");
  find(function_attribute, "cuFuncSetAttribute");
  find(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(allocate, "cuMemAlloc_v2");
  find(memory, "cuMemGetInfo_v2");
  find(release, "cuMemFree_v2");
  find(pinned_allocate, "cuMemHostAlloc");
  find(pinned_release, "cuMemFreeHost");
  find(upload, "cuMemcpyHtoDAsync_v2");
  find(download, "cuMemcpyDtoHAsync_v2");
  find(fill, "cuMemsetD8Async");
  find(stream_priorities, "cuCtxGetStreamPriorityRange");
  find(stream_create, "cuStreamCreateWithPriority");
  find(stream_destroy, "cuStreamDestroy_v2");
  find(stream_synchronize, "cuStreamSynchronize");
  find(stream_wait, "cuStreamWaitEvent");
  find(event_create, "cuEventCreate");
  find(event_destroy, "cuEventDestroy_v2");
  find(event_record, "cuEventRecord");
  find(event_synchronize, "cuEventSynchronize");
  find(event_query, "cuEventQuery");
  find(event_elapsed, "cuEventElapsedTime");
  find(error_name, "cuGetErrorName");
  find(error_string, "cuGetErrorString");
  bool graphs = true;
  const auto look_for = [&](auto& entry, const char* name) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(handle, name));
    graphs &= entry != nullptr;
  };
  look_for(capture_begin, "cuStreamBeginCapture_v2");
  look_for(capture_end, "cuStreamEndCapture");
  look_for(graph_instantiate, "cuGraphInstantiateWithFlags");
  look_for(graph_destroy, "cuGraphDestroy");
  look_for(executable_destroy, "cuGraphExecDestroy");
  look_for(graph_launch, "cuGraphLaunch");
  if (!graphs) graph_launch = nullptr;
}

void Driver::check(int result, const char* call) const {
  if (result == 0) return;
  const char *name = nullptr, *text = nullptr;
  error_name(result, &name);
  error_string(result, &text);
  throw DeviceFault(std::string(call) + ": " + (name ? name : "error " + std::to_string(result)) +
                        (text ? std::string(" (") + text + ")" : ""),
                    cure_of(result, install));
}

}  // namespace cavs::cuda
