#include "base/pooled_vector.h"

#include <bit>
#include <mutex>
#include <new>
#include <unordered_map>

namespace cavs {
namespace {

// Under a sanitizer every block is new: it sees what is used after it was given back.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kKept = 0;
#else
constexpr size_t kKept = size_t{64} << 20;
#endif
constexpr size_t kSmall = 8 << 10;  // below it the allocator of the C library reuses them itself

// Up to the next of four sizes between powers of two, so that batches of like size share blocks.
size_t rounded(size_t bytes) {
  const size_t step = std::bit_floor(bytes) / 4;
  return (bytes + step - 1) / step * step;
}

// Nobody waits for it: while another thread has it, or had it when this process was forked, blocks
// are those of the system.
struct Pool {
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<void*>> blocks;  // by size
  size_t kept = 0;

  void clear() noexcept {
    for (auto& [size, free] : blocks) {
      for (void* block : free) ::operator delete(block);
    }
    blocks.clear();
    kept = 0;
  }
};

Pool& pool() {
  static Pool* const one = new Pool;  // never destroyed: arrays may outlive everything else
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
        p.kept -= size;
        return block;
      }
    }
  }
  return ::operator new(size);
}

void pool_free(void* block, size_t bytes) noexcept {
  const size_t size = bytes < kSmall ? bytes : rounded(bytes);
  if (bytes >= kSmall && size <= kKept / 4) {
    Pool& p = pool();
    const std::unique_lock<std::mutex> lock(p.mutex, std::try_to_lock);
    if (lock) {
      if (p.kept + size > kKept) p.clear();  // sizes that do not come again make room
      try {
        p.blocks[size].push_back(block);
        p.kept += size;
        return;
      } catch (const std::bad_alloc&) {  // no room to note it: it goes back to the system
      }
    }
  }
  ::operator delete(block);
}

}  // namespace cavs
