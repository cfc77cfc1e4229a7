#include "base/processors.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/config_error.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace cavs {
namespace {

#if defined(__linux__)
std::optional<int> affinity_cores() {
  for (int cores = 1024; cores <= 1 << 20;
       cores *= 4) {  // the mask must be as large as the kernel's
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cores));
    const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(cores));
    const bool known = sched_getaffinity(0, size, set) == 0;
    const int count = known ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (known) return count;
  }
  return std::nullopt;
}

int ceil_cores(double quota, double period) {
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

// Tightest CPU quota of the process's cgroup and its ancestors; version 2, then version 1.
std::optional<int> quota_cores() {
  std::string path, line;
  std::ifstream groups("/proc/self/cgroup");
  while (std::getline(groups, line))
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  std::optional<int> best;
  for (;;) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max" && period > 0) {
      const int cores = ceil_cores(std::strtod(quota.c_str(), nullptr), period);
      best = std::min(best.value_or(cores), cores);
    }
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) break;
    path.resize(slash);
  }
  if (best) return best;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0)
    return ceil_cores(quota, period);
  return std::nullopt;
}
#else
std::optional<int> affinity_cores() { return std::nullopt; }
std::optional<int> quota_cores() { return std::nullopt; }
#endif

}  // namespace

int default_num_threads() {
  if (const char* wish = std::getenv("CAVS_NUM_THREADS"); wish != nullptr && *wish != '\0') {
    char* end = nullptr;
    const long n = std::strtol(wish, &end, 10);
    if (*end != '\0' || n < 1 || n > kMaxThreads)
      throw ConfigError("CAVS_NUM_THREADS must be a number from 1 to " +
                            std::to_string(kMaxThreads) + ", not \"" + wish + "\"",
                        "unset it: the machine then decides");
    return static_cast<int>(n);
  }
  int cores = affinity_cores().value_or(static_cast<int>(std::thread::hardware_concurrency()));
  if (const auto quota = quota_cores()) cores = std::min(cores, *quota);
  return std::clamp(cores, 1, kMaxThreads);
}

int64_t l2_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const int64_t told = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  constexpr int64_t told = 0;
#endif
  return told > 0 ? std::clamp<int64_t>(told, 256 << 10, 2 << 20) : 512 << 10;
}

}  // namespace cavs
