#include "base/openmp.h"

#include <dlfcn.h>

namespace cavs {
namespace {

template <class Entry>
bool look_up(void* library, const char* name, Entry& entry) {
  entry = reinterpret_cast<Entry>(dlsym(library, name));
  return entry != nullptr;
}

}  // namespace

std::unique_ptr<const OpenMpRuntime> OpenMpRuntime::find(const std::string& path) {
  // The handle also finds symbols of the libraries that this one depends on. It is never closed:
  // the runtime must outlive its threads.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  std::unique_ptr<OpenMpRuntime> found(new OpenMpRuntime);
  const bool complete = look_up(library, "GOMP_parallel", found->parallel_) &&
                        look_up(library, "omp_get_thread_num", found->number_) &&
                        look_up(library, "omp_get_max_threads", found->most_) &&
                        look_up(library, "omp_in_parallel", found->inside_) &&
                        look_up(library, "omp_get_dynamic", found->dynamic_) &&
                        look_up(library, "omp_get_thread_limit", found->limit_);
  if (complete) return found;
  dlclose(library);
  return nullptr;
}

int OpenMpRuntime::region_threads() const {
  const int most = most_();
  return inside_() != 0 || dynamic_() != 0 || limit_() < most ? 1 : most;
}

void OpenMpRuntime::parallel(int count, void (*function)(void*), void* argument) const {
  parallel_(function, argument, static_cast<unsigned>(count), 0);
}

}  // namespace cavs
