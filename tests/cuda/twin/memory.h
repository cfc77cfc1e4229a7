// Device and pinned memory: host allocations surrounded by guard bytes and faulting pages.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace twin {

// Poison bytes: NaN as float, double and bfloat16, and a very large integer.
void poison(void* address, size_t bytes);
bool poisoned(const void* address, size_t bytes);

class Memory {
 public:
  Memory();

  // Zero if `capacity` bytes are exceeded or the host is out of memory.
  uintptr_t allocate(size_t bytes);
  bool free(uintptr_t address);  // false if it is not the start of an allocation
  uintptr_t allocate_pinned(size_t bytes);
  bool free_pinned(uintptr_t address);

  bool device(uintptr_t address, size_t bytes) const;  // inside one live allocation
  // Begin and end of that allocation.
  std::optional<std::pair<uintptr_t, uintptr_t>> allocation(uintptr_t address, size_t bytes) const;
  bool pinned(uintptr_t address, size_t bytes) const;
  // True if the address may be passed to a kernel: of the device, possibly before its allocation (a
  // pointer to row 0 of rows that start later), or of pinned memory.
  bool reachable(uintptr_t address) const;
  bool in_region(uintptr_t address) const { return address >= region_ && address < end_; }
  uintptr_t region() const { return region_; }
  size_t region_size() const { return end_ - region_; }
  std::string describe(uintptr_t address) const;
  // Names allocations whose guard bytes changed, including freed ones; or empty.
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
  uintptr_t region_ = 0, next_ = 0, end_ = 0;  // device addresses, never reused
  size_t used_ = 0;
  std::string violations_;
};

}  // namespace twin
