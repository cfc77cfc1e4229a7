// Signals raised by kernels.
#pragma once

#include <signal.h>

#include <cstddef>

namespace twin {

// In this scope a signal of the running kernel becomes a fault of its launch; other signals are
// handled as before.
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
