// Tells other threads, during a run, which gradients are final.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace cavs {

class GradientProgress {
 public:
  explicit GradientProgress(size_t parameters)
      : size_(parameters), left_(std::make_unique<std::atomic<int32_t>[]>(parameters)) {
    begin(std::vector<int32_t>(parameters, 0));
  }
  // Before a run that others wait for: no gradient is final.
  void arm() { fill(kArmed); }
  // The run starts: pieces of work that each gradient still needs.
  void begin(const std::vector<int32_t>& pieces) {
    for (size_t i = 0; i < size_; ++i) set(i, pieces[i]);
  }
  void finished(int32_t param) {
    if (left_[param].fetch_sub(1, std::memory_order_acq_rel) == 1) left_[param].notify_all();
  }
  // The run failed: nobody waits for it any longer.
  void fail() { fill(kFailed); }
  bool wait(int32_t param) const {
    int32_t left;
    while ((left = left_[param].load(std::memory_order_acquire)) > 0) {
      left_[param].wait(left, std::memory_order_acquire);
    }
    return left == 0;
  }

 private:
  static constexpr int32_t kArmed = 1 << 30, kFailed = -1;
  void set(size_t i, int32_t value) {
    left_[i].store(value, std::memory_order_release);
    if (value <= 0) left_[i].notify_all();
  }
  void fill(int32_t value) {
    for (size_t i = 0; i < size_; ++i) set(i, value);
  }
  size_t size_;
  std::unique_ptr<std::atomic<int32_t>[]> left_;
};

}  // namespace cavs
