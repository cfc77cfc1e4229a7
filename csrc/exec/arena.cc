#include "exec/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>

namespace cavs {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A few lines of padding: rows of neighbours at equal offsets modulo 4096 would evict each other
// from the first-level cache. Constant, so that equal sizes reuse each other's memory.
size_t padded(size_t bytes) { return bytes == 0 ? 0 : round_up(bytes, kLine) + 5 * kLine; }

}  // namespace

void Memory::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  // Batches differ in size: growing by a quarter more avoids most later growths.
  bytes = bytes_ == 0 ? bytes : std::max(bytes, bytes_ + bytes_ / 4);
  const bool huge = bytes >= 2 * kHugePage;
  bytes = round_up(bytes, huge ? kHugePage : kLine);
  data_ = nullptr;
  bytes_ = 0;
  void* const data = std::aligned_alloc(huge ? kHugePage : kLine, bytes);
  if (data == nullptr) throw std::bad_alloc();
  data_ = std::shared_ptr<void>(data, std::free);
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);
  bytes_ = bytes;
}

std::shared_ptr<Memory> MemoryPool::take() {
  std::unique_ptr<Memory> block;
  {
    const std::lock_guard lock(free_->mutex);
    if (!free_->blocks.empty()) {
      block = std::move(free_->blocks.back());
      free_->blocks.pop_back();
    }
  }
  if (block == nullptr) block = std::make_unique<Memory>();
  return {block.release(), [free = free_](Memory* memory) {
            std::unique_ptr<Memory> given(memory);
            const std::lock_guard lock(free->mutex);
            if (free->blocks.size() < kMostFree) free->blocks.push_back(std::move(given));
          }};
}

size_t pack_lifetimes(std::vector<Lifetime>& values) {
  std::vector<int32_t> by_size(values.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](int32_t a, int32_t b) { return values[a].bytes > values[b].bytes; });
  std::vector<int32_t> placed;  // sorted by offset
  size_t total = 0;
  for (int32_t id : by_size) {
    Lifetime& v = values[id];
    const size_t bytes = padded(v.bytes);
    if (bytes == 0) {
      v.offset = 0;
      continue;
    }
    size_t best = SIZE_MAX, best_gap = SIZE_MAX, end = 0;
    for (int32_t other_id : placed) {
      const Lifetime& other = values[other_id];
      if (other.last < v.first || v.last < other.first) continue;
      if (other.offset > end && other.offset - end >= bytes && other.offset - end < best_gap) {
        best = end;
        best_gap = other.offset - end;
      }
      end = std::max(end, other.offset + padded(other.bytes));
    }
    v.offset = best != SIZE_MAX ? best : end;
    total = std::max(total, v.offset + bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), id,
                         [&](int32_t a, int32_t b) { return values[a].offset < values[b].offset; }),
        id);
  }
  return total;
}

size_t assign_disjoint_offsets(std::vector<Lifetime>& values) {
  size_t total = 0;
  for (Lifetime& v : values) {
    v.offset = total;
    total += padded(v.bytes);
  }
  return total;
}

size_t peak_live(const std::vector<Lifetime>& values, int32_t steps) {
  std::vector<size_t> change(steps + 2, 0);
  for (const Lifetime& v : values) {
    change[v.first] += v.bytes;
    change[v.last + 1] -= v.bytes;
  }
  size_t live = 0, peak = 0;
  for (size_t c : change) {
    live += c;
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace cavs
