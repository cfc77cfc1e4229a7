#include "cuda/memory/gradient_mirror.h"

#include <algorithm>

#include "cuda/driver/context.h"

namespace cavs::cuda {

template <class T>
GradientMirror<T>::GradientMirror(std::shared_ptr<Device> device, const Analysis& analysis,
                                  const std::vector<int64_t>& sizes)
    : device_(std::move(device)),
      analysis_(analysis),
      sizes_(sizes),
      layout_(lay_out_dense_gradients(analysis, sizeof(T), sizes)),
      progress_(analysis, sizes),
      values_(device_),
      tables_(device_),
      on_device_(sizes.size(), false) {}

template <class T>
void GradientMirror<T>::reserve() {
  if (reserved()) return;
  values_.reserve(std::max<int64_t>(1, layout_.elements) * sizeof(T));
  std::fill_n(block(), layout_.elements, T(0));
}

template <class T>
void GradientMirror<T>::make_events() {
  for (size_t i = computed_.size(); i < sizes_.size(); ++i) {
    std::vector<std::unique_ptr<Event>> slabs;
    for (int64_t at = 0; at < sizes_[i]; at += analysis_.slab[i]) {
      slabs.push_back(std::make_unique<Event>(device_, false));
    }
    copied_.resize(i);  // drop what a failed attempt left
    copied_.push_back(std::move(slabs));
    computed_.push_back(std::make_unique<Event>(device_, false));
  }
}

template <class T>
void GradientMirror<T>::arm() {
  armed_ = true;
  progress_.arm();
}

template <class T>
void GradientMirror<T>::begin(const std::vector<Table>& tables) {
  make_events();
  for (int32_t i : analysis_.gradient_order) {
    if (analysis_.dense_gradient[i] && !on_device_[i]) reserve();
  }
  std::vector<size_t> at;
  size_t bytes = 0;
  for (const Table& table : tables) {
    at.push_back(bytes);
    if (!table.dense) bytes += aligned(table.slots.size() * table.width * sizeof(T));
  }
  tables_.reserve(bytes);
  table_at_ = std::move(at);
}

// Run `copies` on the mirror lane, after the work given to the current lane so far.
template <class T>
template <class F>
void GradientMirror<T>::on_mirror_lane(int32_t param, F&& copies) {
  computed_[param]->record();
  const int lane = device_->lane();
  device_->use_lane(Device::kMirror);
  computed_[param]->wait();
  copies();
  device_->use_lane(lane);
  progress_.finished(param);
}

template <class T>
void GradientMirror<T>::download(T* to, const T* from, int64_t count) {
  device_->download(to, reinterpret_cast<Address>(from), count * sizeof(T));
}

template <class T>
void GradientMirror<T>::record(int32_t param) {
  for (const auto& slab : copied_[param]) slab->record();
}

// Copies go slab by slab: the first slabs can be sent on while the last are copied.
template <class T>
void GradientMirror<T>::copy_dense(int32_t param, const T* from) {
  if (on_device_[param]) {
    computed_[param]->record();
    progress_.finished(param);
    return;
  }
  on_mirror_lane(param, [&] {
    const int64_t slab = analysis_.slab[param];
    for (int64_t at = 0; at < sizes_[param]; at += slab) {
      download(dense(param) + at, from + at, std::min(slab, sizes_[param] - at));
      copied_[param][at / slab]->record();
    }
  });
}

template <class T>
void GradientMirror<T>::copy_rows(int32_t param, size_t table, const T* from, int64_t count) {
  on_mirror_lane(param, [&] {
    download(rows(table), from, count);
    record(param);
  });
}

template <class T>
void GradientMirror<T>::copy_factors(int32_t param, DeviceFactors& f) {
  on_mirror_lane(param, [&] {
    download(f.host_left.at<T>(), f.left.as<T>(), f.of.rows * f.of.k);
    download(f.host_right.at<T>(), f.right.as<T>(), f.of.rows * f.of.n);
    record(param);
  });
}

template <class T>
void GradientMirror<T>::finish() {
  armed_ = false;
  progress_.finish();
}

template <class T>
void GradientMirror<T>::fail() {
  armed_ = false;
  progress_.fail();
}

template <class T>
bool GradientMirror<T>::wait(int32_t param, int64_t begin, int64_t end) const {
  if (!progress_.wait(param, begin, end)) return false;
  try {
    const CurrentContext here(*device_);
    const int64_t slab = analysis_.slab[param];
    for (int64_t at = begin / slab; at * slab < end; ++at) copied_[param][at]->synchronize();
  } catch (const DeviceFault&) {  // the launching thread raises it
    return false;
  }
  return true;
}

template class GradientMirror<float>;
template class GradientMirror<double>;

}  // namespace cavs::cuda
