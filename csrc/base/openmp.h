// The OpenMP runtime of another library of the process, such as PyTorch's, which runs parallel
// regions of the engine on its threads. Two pools of threads, each of which spins between regions,
// would take the cores from each other.
#pragma once

#include <memory>
#include <string>

namespace cavs {

class OpenMpRuntime {
 public:
  // Find the runtime that the loaded library at `path` uses; null if the process has not loaded
  // that library, or if it uses none.
  static std::unique_ptr<const OpenMpRuntime> find(const std::string& path);

  // Return the number of threads of the next region of this thread; 1 inside a region, or where
  // the runtime may give fewer threads than it is asked for.
  int region_threads() const;

  // Run function(argument) on `count` threads at the same time, the calling thread among them.
  void parallel(int count, void (*function)(void*), void* argument) const;

  // Return the number of the calling thread in its region.
  int thread_number() const { return number_(); }

 private:
  using Query = int (*)();
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

  OpenMpRuntime() = default;

  Parallel parallel_ = nullptr;
  Query number_ = nullptr, most_ = nullptr, inside_ = nullptr, dynamic_ = nullptr;
  Query limit_ = nullptr;
};

}  // namespace cavs
