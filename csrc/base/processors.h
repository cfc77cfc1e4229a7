// How many threads this process may usefully run, and how much a core keeps near.
#pragma once

#include <cstdint>

namespace cavs {

constexpr int kMaxThreads = 256;

// CAVS_NUM_THREADS if set (ConfigError unless it is a number from 1 to kMaxThreads), else
// the cores of the affinity mask, at most what the cgroup's quota gives, at least 1.
int default_num_threads();

// Bytes of a core's second cache, from 256 KiB to 2 MiB; 512 KiB where nobody tells.
int64_t l2_bytes();

}  // namespace cavs
