#include "cuda/executor/collectives.h"

#include <chrono>
#include <thread>

#include "cuda/driver/context.h"

namespace cavs::cuda {

void Collectives::follow(const Event& computed) const {
  const CurrentContext here(*device_);
  computed.wait(device_->collectives());
}

void Collectives::open() {
  const CurrentContext here(*device_);
  if (count_ == marks_.size()) marks_.push_back(std::make_unique<Marks>(device_));
  marks_[count_]->opened.record(device_->collectives());
}

void Collectives::close() {
  const CurrentContext here(*device_);
  marks_[count_++]->closed.record(device_->collectives());
}

// Poll instead of blocking in the driver, which cannot be interrupted if another process never
// joins.
bool Collectives::wait(double seconds) const {
  using Clock = std::chrono::steady_clock;
  if (count_ == 0) return true;
  const CurrentContext here(*device_);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!marks_[count_ - 1]->closed.reached()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

void Collectives::join() const {
  if (count_ > 0) marks_[count_ - 1]->closed.wait();
}

double Collectives::seconds() const {
  const CurrentContext here(*device_);
  double sum = 0;
  for (size_t i = 0; i < count_; ++i) {
    sum += marks_[i]->closed.seconds_since(marks_[i]->opened);
  }
  return sum;
}

}  // namespace cavs::cuda
