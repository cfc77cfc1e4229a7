#include "base/pooled_vector.h"

#include <bit>
#include <mutex>
#include <new>
#include <unordered_map>

namespace cavs {
namespace {

// Under a sanitizer nothing is pooled, so that it detects use after free.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kPoolBytes = 0;
#else
constexpr size_t kPoolBytes = size_t{64} << 20;
#endif
constexpr size_t kSmall = 8 << 10;  // smaller blocks are reused by the C library itself

// Round up to one of four sizes per power of two, so that batches of similar size share blocks.
size_t rounded(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 4;
  return (bytes + step - 1) / step * step;
}

// Free blocks. No thread waits for the mutex: while another thread holds it, or held it when this
// process was forked, blocks come from the system.
struct Pool {
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<void*>> blocks;  // by size
  size_t bytes = 0;

  void clear() noexcept {
    for (auto& [size, free] : blocks) {
      for (void* block : free) ::operator delete(block);
    }
    blocks.clear();
    bytes = 0;
  }
};

Pool& pool() {
  static Pool* const one = new Pool;  // never destroyed: arrays may outlive static objects
  return *one;
}

}  // namespace

void* pool_allocate(size_t bytes) {
  if (bytes < kSmall) return ::operator new(bytes);
  const size_t size = rounded(bytes);
  {
    Pool& p = pool();
    const std::unique_lock<std::mutex> lock(p.mutex, std::try_to_lock);
    if (lock) {
      const auto found = p.blocks.find(size);
      if (found != p.blocks.end() && !found->second.empty()) {
        void* const block = found->second.back();
        found->second.pop_back();
        p.bytes -= size;
        return block;
      }
    }
  }
  return ::operator new(size);
}

void pool_free(void* block, size_t bytes) noexcept {
  const size_t size = bytes < kSmall ? bytes : rounded(bytes);
  if (bytes >= kSmall && size <= kPoolBytes / 4) {
    Pool& p = pool();
    const std::unique_lock<std::mutex> lock(p.mutex, std::try_to_lock);
    if (lock) {
      if (p.bytes + size > kPoolBytes) p.clear();  // drops sizes that are no longer used
      try {
        p.blocks[size].push_back(block);
        p.bytes += size;
        return;
      } catch (const std::bad_alloc&) {  // the pool cannot grow: return the block to the system
      }
    }
  }
  ::operator delete(block);
}

}  // namespace cavs
