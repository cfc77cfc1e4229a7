// Stacks, and switches between them. swapcontext would make two system calls per switch.
#pragma once

#include <cstddef>
#include <vector>

namespace twin {

// Save the caller's registers on its stack and the stack in *save, then continue at `load`.
extern "C" void twin_switch(void** save, void* load);

class Stacks {
 public:
  // Stacks in use. Each has two mappings, and Linux allows some 65 thousand per process.
  static constexpr size_t kMost = 16 << 10;
  // Return a stack whose first switch calls `main`, which must not return. A guard page is below
  // it.
  void* take(void (*main)());
  void reuse_all() { used_ = 0; }  // stacks in use are abandoned

 private:
  std::vector<char*> stacks_;
  size_t used_ = 0;
};

}  // namespace twin
