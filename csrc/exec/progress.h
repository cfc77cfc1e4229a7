// Progress of gradients during a run, for threads that wait for final ones. Gradients of large
// parameters become final slab by slab (Analysis::slab), so that the first rows can be sent while
// the last are computed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/plan.h"

namespace cavs {

class GradientProgress {
 public:
  GradientProgress(const Analysis& analysis, const std::vector<int64_t>& sizes);

  // Count the items of a plan that contribute to each slab.
  void count(const Plan& plan);
  // Mark all gradients as not final, before a run that others wait for.
  void arm();
  // True if any thread ever waited.
  bool watched() const { return watched_; }
  // Start a run; `prologue` runs before the plan.
  void begin(const std::vector<Item>& prologue);
  void finished(const Item& item);
  // Mark a whole gradient as final, for an engine without a plan; or all gradients.
  void finished(int32_t param);
  void finish() { fill(0); }
  // The run failed or was cancelled: release all waiting threads.
  void fail();
  // Wait until elements [begin, end) of a gradient are final; false if the run failed. Throws
  // std::out_of_range for elements that the gradient does not have.
  bool wait(int32_t param, int64_t begin, int64_t end) const;

 private:
  static constexpr int32_t kArmed = 1 << 30, kFailed = -1;
  template <class F>
  void each_slab(int32_t param, int64_t begin, int64_t end, F&& f) const;
  template <class F>
  void each_slab(const Item& item, F&& f) const;
  void set(size_t slab, int32_t value);
  void fill(int32_t value);

  const Analysis& analysis_;
  std::vector<int64_t> sizes_;
  std::vector<int32_t> first_;   // parameter -> its first slab
  std::vector<int32_t> pieces_;  // items of the plan for each slab
  bool watched_ = false;
  std::unique_ptr<std::atomic<int32_t>[]> left_;
};

}  // namespace cavs
