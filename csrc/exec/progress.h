// Tells other threads, during a run, which gradients are final: those of large parameters slab by
// slab (Analysis::slab), so that the first rows can leave while the last are computed.
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

  // The pieces of work in a plan that each slab needs.
  void count(const Plan& plan);
  // Before a run that others wait for: no gradient is final.
  void arm();
  // Whether anybody ever waited.
  bool watched() const { return watched_; }
  // The run starts: `prologue` comes before the plan.
  void begin(const std::vector<Item>& prologue);
  void finished(const Item& item);
  // The same of a whole gradient, for an engine that works without a plan; and of all there are.
  void finished(int32_t param);
  void finish() { fill(0); }
  // The run failed, or will not come: nobody waits for it any longer.
  void fail();
  // Whether elements [begin, end) of a gradient are final; waits until they are. Throws
  // std::out_of_range for elements that it does not have.
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
  std::vector<int32_t> pieces_;  // of the plan, for each slab
  bool watched_ = false;
  std::unique_ptr<std::atomic<int32_t>[]> left_;
};

}  // namespace cavs
