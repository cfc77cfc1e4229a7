// Launchers of instructions on a device: one function per kind, in the files of
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
  // Several sum_rows over the same rows in one launch.
  static void joint_sum_rows(Executor<T>& executor, const std::vector<int32_t>& ids, RowRange rows);
};

// Instantiate the launcher of an instruction.
#define CAVS_INSTANTIATE_LAUNCHER(name)                                               \
  template void Launchers<float>::name(Executor<float>&, int32_t, const LaunchRows&); \
  template void Launchers<double>::name(Executor<double>&, int32_t, const LaunchRows&);

}  // namespace cavs::cuda
