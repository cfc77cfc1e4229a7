// One kernel launch on the host: blocks one after the other, the threads of a block as fibres.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "module.h"

namespace twin {

struct Launch {
  const Module* module;
  const Kernel* kernel;
  Index grid, block;
  unsigned dynamic_shared;  // bytes
  void** parameters;
  uint64_t seed;  // 0: blocks and threads in order; else in the order of this seed
};

struct Fault {
  int code = 0;  // a CUresult; 0: none
  std::string text;
};

// Says what stands at an address, for the text of a fault.
using Describe = std::function<std::string(uintptr_t)>;

// Runs the launch. A fault ends it at once: what was written stays, as on a device.
Fault run(const Launch& launch, const Describe& describe);

// Bytes of poison: NaN as float, double and bfloat16, and a very large number as an integer.
void poison(void* address, size_t bytes);
bool poisoned(const void* address, size_t bytes);

}  // namespace twin
