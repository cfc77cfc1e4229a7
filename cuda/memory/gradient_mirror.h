// Host copies of the gradients of a run. Each gradient is copied to page-locked memory behind the
// launches that compute it, while the run goes on; other threads wait for the copies.
#pragma once

#include <memory>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/event.h"
#include "cuda/memory/allocation.h"
#include "cuda/memory/device_factors.h"
#include "exec/analysis.h"
#include "exec/progress.h"
#include "exec/sparse_gradients.h"

namespace cavs::cuda {

template <class T>
class GradientMirror {
 public:
  GradientMirror(std::shared_ptr<Device> device, const Analysis& analysis,
                 const std::vector<int64_t>& sizes);

  // Layout of dense gradients in their block, the same on host and device.
  const GradientLayout& layout() const { return layout_; }
  // Allocate the block of dense gradients; it never moves. Requires a DeviceLock.
  void reserve();
  bool reserved() const { return values_.bytes() > 0; }
  size_t host_bytes() const { return values_.bytes() + tables_.bytes(); }
  // From now on a dense gradient is not copied but waited for and read on the device.
  void keep_on_device(int32_t param) { on_device_[param] = true; }
  bool stays_on_device(int32_t param) const { return on_device_[param]; }

  // Announce a run whose gradients other threads wait for.
  void arm();
  bool armed() const { return armed_; }
  // During that run: allocate room for gradients of tables; copy each gradient from the lane that
  // computed it; end.
  void begin(const std::vector<Table>& tables);
  void copy_dense(int32_t param, const T* from);
  void copy_rows(int32_t param, size_t table, const T* from, int64_t count);
  void copy_factors(int32_t param, DeviceFactors& factors);
  void finish();
  // The run failed, or will not happen.
  void fail();

  // On any thread: wait until elements [begin, end) of a gradient have been copied. False on
  // failure.
  bool wait(int32_t param, int64_t begin, int64_t end) const;
  // Wait until the launches that compute a gradient were issued, which computed() follows. False on
  // failure.
  bool wait_launched(int32_t param) const { return progress_.wait(param, 0, sizes_.at(param)); }
  const Event& computed(int32_t param) const { return *computed_[param]; }
  T* block() const { return values_.at<T>(); }
  T* dense(int32_t param) const { return block() + layout_.at[param]; }
  // Gradient rows of a table; null before the first announced run.
  T* rows(size_t table) const {
    return table_at_.empty() ? nullptr : tables_.at<T>(table_at_[table]);
  }
  // True if these elements are in the block.
  bool holds(const T* values, int64_t count) const {
    return reserved() && values >= block() && values + count <= block() + layout_.elements;
  }

 private:
  template <class F>
  void on_mirror_lane(int32_t param, F&& copies);
  void download(T* to, const T* from, int64_t count);
  void record(int32_t param);
  void make_events();

  std::shared_ptr<Device> device_;
  const Analysis& analysis_;
  std::vector<int64_t> sizes_;
  GradientLayout layout_;
  GradientProgress progress_;  // counts launches
  PinnedMemory values_, tables_;
  std::vector<size_t> table_at_;                             // offsets in bytes
  std::vector<std::unique_ptr<Event>> computed_;             // by parameter
  std::vector<std::vector<std::unique_ptr<Event>>> copied_;  // by parameter and slab
  std::vector<bool> on_device_;
  bool armed_ = false;
};

}  // namespace cavs::cuda
