// Signals that a kernel raises.
#pragma once

#include <signal.h>

#include <cstddef>

namespace twin {

// While it lives, a signal of the running kernel becomes a fault of its launch; those of anybody
// else go their usual way.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  stack_t old_stack_ = {};
};

}  // namespace twin
