// The CUDA driver API, resolved at run time: CUDA is needed neither to build nor to import cavs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace cavs::cuda {

using Address = uint64_t;  // device memory
using Handle = void*;      // a context, module, function, stream or event

constexpr unsigned kNoTiming = 2;  // CU_EVENT_DISABLE_TIMING

// A failure of the driver or of a library; becomes cavs.errors.DeviceError.
struct DeviceFault : std::runtime_error {
  DeviceFault(const std::string& what, std::string cure)
      : std::runtime_error(what), hint(std::move(cure)) {}
  std::string hint;
};

// Entry points with the signatures of the driver; results are CUresult, 0 is success.
struct Driver {
  // install: the pip command that installs the CUDA libraries, for error messages.
  Driver(const std::string& library, std::string install);
  // Throws DeviceFault with the call, the driver's description of `result` and a cure.
  void check(int result, const char* call) const;

  const std::string install;

  int (*init)(unsigned);
  int (*driver_version)(int*);
  int (*device_get)(int*, int);
  int (*device_attribute)(int*, int, int);
  int (*primary_retain)(Handle*, int);
  int (*context_get)(Handle*);
  int (*context_set)(Handle);
  int (*module_load)(Handle*, const void*);
  int (*module_unload)(Handle);
  int (*module_function)(Handle*, Handle, const char*);
  int (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                Handle, void**, void**);
  int (*launch_cooperative)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, Handle, void**);
  int (*function_attribute)(Handle, int, int);
  int (*occupancy)(int*, Handle, int, size_t);
  int (*allocate)(Address*, size_t);
  int (*memory)(size_t*, size_t*);
  int (*release)(Address);
  int (*pinned_allocate)(void**, size_t, unsigned);
  int (*pinned_release)(void*);
  int (*upload)(Address, const void*, size_t, Handle);
  int (*download)(void*, Address, size_t, Handle);
  int (*fill)(Address, unsigned char, size_t, Handle);
  int (*stream_priorities)(int*, int*);
  int (*stream_create)(Handle*, unsigned, int);
  int (*stream_destroy)(Handle);
  int (*stream_synchronize)(Handle);
  int (*stream_wait)(Handle, Handle, unsigned);
  int (*event_create)(Handle*, unsigned);
  int (*event_destroy)(Handle);
  int (*event_record)(Handle, Handle);
  int (*event_synchronize)(Handle);
  int (*event_query)(Handle);
  int (*event_elapsed)(float*, Handle, Handle);
  int (*error_name)(int, const char**);
  int (*error_string)(int, const char**);

  // Graph functions; graph_launch is null if the driver lacks any of them.
  bool has_graphs() const { return graph_launch != nullptr; }
  int (*capture_begin)(Handle, int) = nullptr;
  int (*capture_end)(Handle, Handle*) = nullptr;
  int (*graph_instantiate)(Handle*, Handle, unsigned long long) = nullptr;
  int (*graph_destroy)(Handle) = nullptr;
  int (*executable_destroy)(Handle) = nullptr;
  int (*graph_launch)(Handle, Handle) = nullptr;
};

}  // namespace cavs::cuda
