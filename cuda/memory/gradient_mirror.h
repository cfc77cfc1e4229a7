// Gradients of a run as the host has them: each is copied to page-locked memory as soon as the
// launches that make it are done, while the run goes on, and other threads wait for it.
#pragma once

#include <memory>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/memory/device_factors.h"
#include "exec/analysis.h"
#include "exec/progress.h"
#include "exec/tables.h"

namespace cavs::cuda {

template <class T>
class Mirror {
 public:
  Mirror(std::shared_ptr<Device> device, const Analysis& analysis,
         const std::vector<int64_t>& sizes);

  // Where dense gradients lie in their blocks, here and on the device.
  const GradientLayout& layout() const { return layout_; }
  // Room for dense gradients, which stays where it is. In a Turn.
  void reserve();
  bool reserved() const { return values_.bytes() > 0; }
  size_t host_bytes() const { return values_.bytes() + tables_.bytes(); }
  // From now on a dense gradient is not copied: it is waited for and read on the device.
  void keep(int32_t param) { kept_[param] = true; }
  bool keeps(int32_t param) const { return kept_[param]; }

  // Before a run that others follow.
  void arm();
  bool armed() const { return armed_; }
  // Of such a run: room for the gradients of tables; each gradient, from the lane that has made it;
  // the end.
  void begin(const std::vector<Table>& tables);
  void leave(int32_t param, const T* from);
  void leave_rows(int32_t param, size_t table, const T* from, int64_t count);
  void leave_factors(int32_t param, DeviceFactors& factors);
  void finish();
  // The run failed, or will not come.
  void fail();

  // On any thread: whether elements [begin, end) of a gradient are here; waits until they are.
  bool wait(int32_t param, int64_t begin, int64_t end) const;
  // Whether what makes a gradient has been launched, which made() follows; waits until it has been.
  bool wait_launched(int32_t param) const { return progress_.wait(param, 0, sizes_.at(param)); }
  const Event& made(int32_t param) const { return *made_[param]; }
  T* block() const { return values_.at<T>(); }
  T* dense(int32_t param) const { return block() + layout_.at[param]; }
  // Null before the first run that others follow.
  T* rows(size_t table) const {
    return table_at_.empty() ? nullptr : tables_.at<T>(table_at_[table]);
  }
  // Whether these elements are of the block.
  bool holds(const T* values, int64_t count) const {
    return reserved() && values >= block() && values + count <= block() + layout_.elements;
  }

 private:
  template <class F>
  void behind(int32_t param, F&& copies);
  void download(T* to, const T* from, int64_t count);
  void record(int32_t param);
  void make_events();

  std::shared_ptr<Device> device_;
  const Analysis& analysis_;
  std::vector<int64_t> sizes_;
  GradientLayout layout_;
  GradientProgress progress_;  // what has been launched
  PinnedMemory values_, tables_;
  std::vector<size_t> table_at_;                           // bytes
  std::vector<std::unique_ptr<Event>> made_;               // of each parameter, on the device
  std::vector<std::vector<std::unique_ptr<Event>>> here_;  // of each of its slabs, on the host
  std::vector<bool> kept_;
  bool armed_ = false;
};

}  // namespace cavs::cuda
