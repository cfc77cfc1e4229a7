// Vectors whose memory is used again. Every batch takes some thirty index arrays and gives them
// back; a page that the system hands out anew costs more than what is computed into it.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace cavs {

// Blocks from a few KiB on come from those given back before, where one of like size is there; of
// these at most 64 MiB are kept. Thread safe. pool_allocate throws std::bad_alloc.
void* pool_allocate(size_t bytes);
void pool_free(void* block, size_t bytes) noexcept;

template <class T>
struct PoolAllocator {
  using value_type = T;
  PoolAllocator() = default;
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) {}  // NOLINT: allocators convert

  T* allocate(size_t n) { return static_cast<T*>(pool_allocate(n * sizeof(T))); }
  // What a vector is resized to holds anything at first: most of it is written next.
  template <class U>
  void construct(U* place) noexcept(noexcept(U())) {
    ::new (static_cast<void*>(place)) U;
  }
  void deallocate(T* block, size_t n) noexcept { pool_free(block, n * sizeof(T)); }
  template <class U>
  bool operator==(const PoolAllocator<U>&) const {
    return true;
  }
};

// `PooledVector<int32_t> a(n)` and a.resize(n) leave the new elements as they are; (n, 0) and
// assign do not.
template <class T>
using PooledVector = std::vector<T, PoolAllocator<T>>;

}  // namespace cavs
