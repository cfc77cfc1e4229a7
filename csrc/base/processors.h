// Number of threads that this process may usefully run, and the cache size of a core.
#pragma once

#include <cstdint>

namespace cavs {

constexpr int kMaxThreads = 256;

// CAVS_NUM_THREADS if set (ConfigError unless it is a number from 1 to kMaxThreads), else the cores
// of the affinity mask, at most the quota of the cgroup, at least 1.
int default_num_threads();

// Bytes of the second-level cache of a core, from 256 KiB to 2 MiB; 512 KiB if the system does not
// tell.
int64_t l2_bytes();

}  // namespace cavs
