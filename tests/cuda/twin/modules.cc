// Modules and launches.

#include <dlfcn.h>

#include <cstring>

#include "device_state.h"

using namespace twin;

namespace {

constexpr char kSuffix[] = ".twin.so";

// The image of a module is the path of a library, which ends in kSuffix. Other images, such as
// cubins, are refused.
std::string path_of(const void* image) {
  const char* const text = static_cast<const char*>(image);
  if (text[0] != '/') return {};
  std::string path;
  for (size_t i = 0; i < 4096 && text[i] != '\0'; ++i) {
    path += text[i];
    if (path.ends_with(kSuffix)) return path;
  }
  return {};
}

std::string value_text(const Parameter& parameter, const void* value) {
  const auto number = [&](auto zero) {
    std::memcpy(&zero, value, sizeof zero);
    char text[40];
    if constexpr (std::is_floating_point_v<decltype(zero)>) {
      std::snprintf(text, sizeof text, "%.17g", static_cast<double>(zero));
      if (std::strpbrk(text, "ni") != nullptr) return '"' + std::string(text) + '"';
      return std::string(text);
    } else {
      return std::to_string(zero);
    }
  };
  switch (parameter.kind) {
    case 'p':
      return number(0ull);
    case 'f':
      return parameter.size == 4 ? number(0.0f) : number(0.0);
    case 'i':
      return parameter.size == 8   ? number(0ll)
             : parameter.size == 4 ? number(0)
             : parameter.size == 2 ? number(short{0})
                                   : std::to_string(*static_cast<const signed char*>(value));
    case 'u':
      return parameter.size == 8   ? number(0ull)
             : parameter.size == 4 ? number(0u)
             : parameter.size == 2 ? number(static_cast<unsigned short>(0))
                                   : std::to_string(*static_cast<const unsigned char*>(value));
    default:
      return "null";  // a struct
  }
}

// Copies of a launch's parameters, whose originals the caller may free when the call returns.
struct Values {
  std::vector<std::vector<char>> bytes;
  std::vector<void*> pointers;

  Values(const Kernel& kernel, void** from) {
    for (int i = 0; i < kernel.count; ++i) {
      const char* const start = static_cast<const char*>(from[i]);
      bytes.emplace_back(start, start + kernel.parameters[i].size);
    }
    for (auto& value : bytes) pointers.push_back(value.data());
  }
};

void execute(Device& d, const Function& function, const Record& record, Values& values) {
  if (d.functions.count(&function) == 0)
    return d.fail({kLaunchFailed, "a graph runs a kernel of a module that was unloaded"});
  const Kernel& kernel = *function.kernel;
  if (d.settings.launch_error_at != 0 && ++d.launches == d.settings.launch_error_at)
    return d.fail({static_cast<int>(d.settings.launch_error),
                   "kernel " + std::string(kernel.name) + ": a fault that the test asked for"});
  for (int i = 0; i < kernel.count; ++i) {
    if (kernel.parameters[i].kind != 'p') continue;
    uintptr_t address;
    std::memcpy(&address, values.pointers[static_cast<size_t>(i)], sizeof address);
    if (address != 0 && !d.memory.reachable(address))
      return d.fail({kIllegalAddress, "kernel " + std::string(kernel.name) + ": argument " +
                                          std::to_string(i) + " is " + d.memory.describe(address)});
  }
  const Fault fault =
      run({function.module->module, &kernel, record.grid, record.block, record.shared,
           values.pointers.data(), d.queue.draw(), record.cooperative},
          d.memory, d.order);
  if (fault.code != 0) d.fail(fault);
}

Function* function_of(Device& d, CUfunction handle) {
  Function* const function = reinterpret_cast<Function*>(handle);
  return d.functions.count(function) != 0 ? function : nullptr;
}

// Queue the launch `record`. All blocks of a cooperative launch must fit on the device at once.
CUresult launch(Device& d, CUfunction handle, Record record, CUstream stream_handle,
                void** parameters) {
  const Function* const function = function_of(d, handle);
  Stream* const stream = d.queue.find(stream_handle);
  if (function == nullptr || stream == nullptr) return kInvalidHandle;
  if (const int code = usable(d, stream)) return code;
  const Kernel& kernel = *function->kernel;
  const Index grid = record.grid, block = record.block;
  const unsigned long long threads = 1ull * block.x * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u ||
      grid.y > d.settings.grid_y || grid.z > d.settings.grid_y || threads == 0 || threads > 1024 ||
      block.z > 64)
    return kInvalidValue;
  if (kernel.max_threads != 0 && threads > static_cast<unsigned>(kernel.max_threads))
    return kLaunchOutOfResources;
  if (record.shared > function->max_dynamic_shared ||
      record.shared > function->module->module->dynamic_size ||
      (parameters == nullptr && kernel.count != 0))
    return kInvalidValue;
  for (int i = 0; i < kernel.count; ++i)
    if (parameters[i] == nullptr) return kInvalidValue;
  const double blocks = 1.0 * grid.x * grid.y * grid.z;
  if (record.cooperative &&
      blocks > static_cast<double>(d.settings.multiprocessors * d.settings.blocks_each))
    return kCooperativeLaunchTooLarge;
  const auto values = std::make_shared<Values>(kernel, parameters);
  record.name = kernel.name;
  for (int i = 0; i < kernel.count; ++i)
    record.arguments += (i == 0 ? "" : ",") +
                        value_text(kernel.parameters[i], values->pointers[static_cast<size_t>(i)]);
  d.add(stream, record, [&d, function, record, values] { execute(d, *function, record, *values); });
  return kSuccess;
}

// Code for sm_86, say, runs on every 8.x from 8.6 on.
bool runs_here(const Device& d, const Module& module) {
  const auto capability = static_cast<int>(d.settings.capability);
  return module.architecture == 0 ||
         (module.architecture / 10 == capability / 10 && module.architecture <= capability);
}

// True if the memory that is poisoned before each block holds only shared variables.
bool poison_is_safe(const Module& module) {
  for (const void* other : std::initializer_list<const void*>{
           module.thread, module.block, module.block_dim, module.grid_dim, module.hooks,
           module.dynamic, module.kernels}) {
    const char* const at = static_cast<const char*>(other);
    if (at >= module.shared && at < module.shared_end) return false;
  }
  return true;
}

}  // namespace

TWIN_API CUresult cuModuleLoadData(CUmodule* result, const void* image) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    if (result == nullptr || image == nullptr) return kInvalidValue;
    if (const int code = unsafe(d)) return code;
    const std::string path = path_of(image);
    void* const library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return kInvalidImage;
    const auto* const module = static_cast<const Module*>(dlsym(library, "twin_module"));
    if (module == nullptr || !poison_is_safe(*module)) return kInvalidImage;
    if (!runs_here(d, *module)) return kNoBinaryForGpu;
    auto* const loaded = new LoadedModule{library, module, {}};
    for (int i = 0; i < module->count; ++i)
      loaded->functions[module->kernels[i].name] = {loaded, &module->kernels[i]};
    for (const auto& [name, function] : loaded->functions) d.functions.insert(&function);
    d.modules.insert(loaded);
    *result = reinterpret_cast<CUmodule>(loaded);
    return kSuccess;
  });
}

TWIN_API CUresult cuModuleUnload(CUmodule handle) {
  return entry(Needs::kRelease, [&](Device& d) -> CUresult {
    LoadedModule* const module = reinterpret_cast<LoadedModule*>(handle);
    if (d.modules.count(module) == 0) return kInvalidHandle;
    if (const int code = unsafe(d)) return code;
    d.queue.finish_all();
    d.modules.erase(module);
    for (const auto& [name, function] : module->functions) d.functions.erase(&function);
    dlclose(module->library);
    delete module;
    return kSuccess;
  });
}

TWIN_API CUresult cuModuleGetFunction(CUfunction* result, CUmodule handle, const char* name) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    if (result == nullptr || name == nullptr) return kInvalidValue;
    LoadedModule* const module = reinterpret_cast<LoadedModule*>(handle);
    if (d.modules.count(module) == 0) return kInvalidHandle;
    const auto found = module->functions.find(name);
    if (found == module->functions.end()) return kNotFound;
    *result = reinterpret_cast<CUfunction>(&found->second);
    return kSuccess;
  });
}

TWIN_API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Function* const function = function_of(d, handle);
    if (function == nullptr) return kInvalidHandle;
    if (value < 0) return kInvalidValue;
    if (attribute == 9) return value <= 100 ? kSuccess : kInvalidValue;  // preferred carve-out
    if (attribute != 8) return kInvalidValue;                            // bytes of dynamic shared
    if (value > d.most_shared()) return kInvalidValue;
    function->max_dynamic_shared = static_cast<unsigned>(value);
    return kSuccess;
  });
}

TWIN_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle,
                                                              int threads, size_t shared) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    const Function* const function = function_of(d, handle);
    if (function == nullptr) return kInvalidHandle;
    if (blocks == nullptr || threads <= 0) return kInvalidValue;
    const int most = function->kernel->max_threads == 0 ? 1024 : function->kernel->max_threads;
    const bool fits = threads <= most && shared <= static_cast<size_t>(d.most_shared());
    *blocks = fits ? static_cast<int>(d.settings.blocks_each) : 0;
    return kSuccess;
  });
}

TWIN_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared, CUstream stream,
                                 void** parameters, void** extra) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Record record = {
        .kind = "launch", .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}};
    record.shared = shared;
    if (extra != nullptr) return kInvalidValue;
    return launch(d, function, std::move(record), stream, parameters);
  });
}

TWIN_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                            unsigned grid_z, unsigned block_x, unsigned block_y,
                                            unsigned block_z, unsigned shared, CUstream stream,
                                            void** parameters) {
  return entry(Needs::kContext, [&](Device& d) -> CUresult {
    Record record = {
        .kind = "launch", .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}};
    record.shared = shared;
    record.cooperative = true;
    if (const int code = d.error("cuLaunchCooperativeKernel")) return code;
    if (d.settings.cooperative == 0) return kNotSupported;
    return launch(d, function, std::move(record), stream, parameters);
  });
}

// Types and sizes of a function's parameters, such as "p8 i4 s48", for launches by tests.
TWIN_API const char* twin_parameters(CUfunction handle) {
  static std::string text;
  text.clear();
  const Kernel& kernel = *reinterpret_cast<const Function*>(handle)->kernel;
  for (int i = 0; i < kernel.count; ++i)
    text += (i == 0 ? "" : " ") +
            (kernel.parameters[i].kind + std::to_string(kernel.parameters[i].size));
  return text.c_str();
}
