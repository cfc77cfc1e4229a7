// Stacks and the switch between them. swapcontext would make two system calls a switch.
#pragma once

#include <cstddef>
#include <vector>

namespace twin {

// Saves the caller's registers on its stack, the stack in *save, and goes on where `load` left off.
extern "C" void twin_switch(void** save, void* load);

class Stacks {
 public:
  // In use at once. Each is two mappings, and Linux allows a process some 65 thousand.
  static constexpr size_t kMost = 16 << 10;
  // A stack whose first switch calls `main`, which must not return. Below it a page that faults.
  void* take(void (*main)());
  void reuse_all() { used_ = 0; }  // those in use are abandoned

 private:
  std::vector<char*> stacks_;
  size_t used_ = 0;
};

}  // namespace twin
