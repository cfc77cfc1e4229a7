// One kernel launch on the host: blocks one after the other, the threads of a block as fibres. At
// a barrier of the grid a block is put aside until all have come there.
#pragma once

#include <cstdint>
#include <string>

#include "memory.h"
#include "module.h"
#include "order.h"

namespace twin {

struct Launch {
  const Module* module;
  const Kernel* kernel;
  Index grid, block;
  unsigned dynamic_shared;  // bytes
  void** parameters;
  uint64_t seed;     // 0: blocks and threads in order; else in the order of this seed
  bool cooperative;  // its blocks may meet at barriers of the grid
};

struct Fault {
  int code = 0;  // a CUresult; 0: none
  std::string text = {};
};

// Runs the launch. A fault ends it at once: what was written stays, as on a device.
Fault run(const Launch& launch, const Memory& memory, Order& order);

}  // namespace twin
