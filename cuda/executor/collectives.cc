#include "cuda/executor/collectives.h"

#include <chrono>
#include <thread>

namespace cavs::cuda {

void Collectives::follow(const Event& made) const {
  const Current here(*device_);
  made.wait(device_->collectives());
}

void Collectives::open() {
  const Current here(*device_);
  if (count_ == marks_.size()) marks_.push_back(std::make_unique<Marks>(device_));
  marks_[count_]->opened.record(device_->collectives());
}

void Collectives::close() {
  const Current here(*device_);
  marks_[count_++]->closed.record(device_->collectives());
}

// Whoever waits in the driver cannot be called off, and another process may never come.
bool Collectives::wait(double seconds) const {
  using Clock = std::chrono::steady_clock;
  if (count_ == 0) return true;
  const Current here(*device_);
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
  const Current here(*device_);
  double sum = 0;
  for (size_t i = 0; i < count_; ++i) {
    sum += marks_[i]->closed.seconds_since(marks_[i]->opened);
  }
  return sum;
}

}  // namespace cavs::cuda
