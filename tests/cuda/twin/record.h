// A line of the log.
#pragma once

#include <string>

#include "module.h"

namespace twin {

// An issued operation, and when it ran.
struct Record {
  std::string kind, name = {};  // launch, copy, set, record, wait, product, graph, synchronize
  int stream = 0, priority = 0;
  Index grid = {}, block = {};
  unsigned shared = 0;
  bool cooperative = false;
  std::string arguments = {};  // JSON values
  unsigned long long to = 0, from = 0, bytes = 0;
  long long issued = 0, ran = -1;  // order among all operations
};

}  // namespace twin
