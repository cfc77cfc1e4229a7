// How many threads this process may usefully run.
#pragma once

namespace cavs {

constexpr int kMaxThreads = 256;

// CAVS_NUM_THREADS if set (ConfigError unless it is a number from 1 to kMaxThreads), else
// the cores of the affinity mask, at most what the cgroup's quota gives, at least 1.
int default_num_threads();

}  // namespace cavs
