// How each instruction is launched on a device: one function per kind, each in a file of
// cuda/executor/instructions/.
#pragma once

#include <vector>

#include "cuda/executor/executor.h"

namespace cavs::cuda {

template <class T>
struct Launchers {
#define CAVS_LAUNCHER(enumerator, name) \
  static void name(Executor<T>& executor, int32_t id, const LaunchRows& rows);
  CAVS_INSTRUCTIONS(CAVS_LAUNCHER)
#undef CAVS_LAUNCHER
  // Several sums over the same rows by one kernel.
  static void sum_rows_together(Executor<T>& executor, const std::vector<int32_t>& ids,
                                RowRange rows);
};

// Instantiates the launcher of an instruction.
#define CAVS_INSTANTIATE_LAUNCHER(name)                                               \
  template void Launchers<float>::name(Executor<float>&, int32_t, const LaunchRows&); \
  template void Launchers<double>::name(Executor<double>&, int32_t, const LaunchRows&);

}  // namespace cavs::cuda
