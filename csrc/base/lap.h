// Timer of a scope.
#pragma once

#include <chrono>

namespace cavs {

// Add the seconds from construction to destruction to `*seconds`, unless it is null.
class Lap {
 public:
  explicit Lap(double* seconds) : seconds_(seconds) {
    if (seconds_ != nullptr) start_ = Clock::now();
  }
  ~Lap() {
    if (seconds_ == nullptr) return;
    *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  Clock::time_point start_;
};

}  // namespace cavs
