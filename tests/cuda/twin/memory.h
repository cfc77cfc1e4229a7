// Device and pinned memory: host allocations with guard bytes on both sides and pages that fault
// around them.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace twin {

// Bytes of poison: NaN as float, double and bfloat16, and a very large number as an integer.
void poison(void* address, size_t bytes);
bool poisoned(const void* address, size_t bytes);

class Memory {
 public:
  Memory();

  // Zero if `capacity` bytes are exceeded or the host has no more.
  uintptr_t allocate(size_t bytes);
  bool free(uintptr_t address);  // false: not the start of an allocation
  uintptr_t allocate_pinned(size_t bytes);
  bool free_pinned(uintptr_t address);

  bool device(uintptr_t address, size_t bytes) const;  // inside one live allocation
  bool pinned(uintptr_t address, size_t bytes) const;
  // Whether a kernel may be given the address: one of the device, though perhaps before the start
  // of its allocation (a pointer to row 0 of rows that start later), or of pinned memory.
  bool reachable(uintptr_t address) const;
  bool in_region(uintptr_t address) const { return address >= region_ && address < end_; }
  uintptr_t region() const { return region_; }
  size_t region_size() const { return end_ - region_; }
  std::string describe(uintptr_t address) const;
  // Names the allocations beside which something was written; empty: none. Freed ones are kept.
  std::string violations() const;
  void forget_violations();

  size_t used() const { return used_; }
  size_t device_count() const { return device_.size(); }
  size_t pinned_count() const { return pinned_.size(); }
  size_t capacity = size_t{1} << 36;

 private:
  struct Block {
    size_t bytes;
    uintptr_t pages;
    size_t page_bytes;
  };
  using Blocks = std::map<uintptr_t, Block>;
  uintptr_t add(Blocks& blocks, uintptr_t pages, size_t bytes, size_t page_bytes);
  static const Blocks::value_type* find(const Blocks& blocks, uintptr_t address, size_t bytes);
  static void guard(const Blocks::value_type& block);
  static std::string broken(const Blocks::value_type& block);

  Blocks device_, pinned_;
  uintptr_t region_ = 0, next_ = 0, end_ = 0;  // device addresses; none is used twice
  size_t used_ = 0;
  std::string violations_;
};

}  // namespace twin
