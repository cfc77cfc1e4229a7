// Vectors with a pooled allocator. Every batch allocates and frees some thirty index arrays, and a
// fresh page from the system costs more than the values computed into it.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace cavs {

// Allocate or free a block. Blocks of a few KiB and more are pooled by size; the pool holds at most
// 64 MiB. Thread-safe. pool_allocate throws std::bad_alloc.
void* pool_allocate(size_t bytes);
void pool_free(void* block, size_t bytes) noexcept;

template <class T>
struct PoolAllocator {
  using value_type = T;
  PoolAllocator() = default;
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) {}  // NOLINT: allocators convert

  T* allocate(size_t n) { return static_cast<T*>(pool_allocate(n * sizeof(T))); }
  // Leave the elements of a resized vector uninitialised: most are written next.
  template <class U>
  void construct(U* element) noexcept(noexcept(U())) {
    ::new (static_cast<void*>(element)) U;
  }
  void deallocate(T* block, size_t n) noexcept { pool_free(block, n * sizeof(T)); }
  template <class U>
  bool operator==(const PoolAllocator<U>&) const {
    return true;
  }
};

// `PooledVector<int32_t> a(n)` and a.resize(n) leave new elements uninitialised; (n, 0) and assign
// do not.
template <class T>
using PooledVector = std::vector<T, PoolAllocator<T>>;

}  // namespace cavs
