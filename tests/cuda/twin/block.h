// A kernel launch on the host: blocks run in turn, and the threads of a block as fibres. At a
// barrier of the grid a block is suspended until all have arrived.
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
  uint64_t seed;     // 0: blocks and threads in order, else in an order of this seed
  bool cooperative;  // its blocks may wait at barriers of the grid
};

struct Fault {
  int code = 0;  // a CUresult, or 0
  std::string text = {};
};

// Run the launch. A fault ends it at once: earlier writes stay, as on a device.
Fault run(const Launch& launch, const Memory& memory, Order& order);

}  // namespace twin
