#include "cuda/memory/gradient_mirror.h"

#include <algorithm>

namespace cavs::cuda {

template <class T>
Mirror<T>::Mirror(std::shared_ptr<Device> device, const Analysis& analysis,
                  const std::vector<int64_t>& sizes)
    : device_(std::move(device)),
      analysis_(analysis),
      sizes_(sizes),
      layout_(lay_out_dense_gradients(analysis, sizeof(T), sizes)),
      progress_(analysis, sizes),
      values_(device_),
      tables_(device_),
      kept_(sizes.size(), false) {}

template <class T>
void Mirror<T>::reserve() {
  if (reserved()) return;
  values_.reserve(std::max<int64_t>(1, layout_.elements) * sizeof(T));
  std::fill_n(block(), layout_.elements, T(0));
}

template <class T>
void Mirror<T>::make_events() {
  for (size_t i = made_.size(); i < sizes_.size(); ++i) {
    std::vector<std::unique_ptr<Event>> slabs;
    for (int64_t at = 0; at < sizes_[i]; at += analysis_.slab[i]) {
      slabs.push_back(std::make_unique<Event>(device_, false));
    }
    here_.resize(i);  // what an earlier attempt has left
    here_.push_back(std::move(slabs));
    made_.push_back(std::make_unique<Event>(device_, false));
  }
}

template <class T>
void Mirror<T>::arm() {
  armed_ = true;
  progress_.arm();
}

template <class T>
void Mirror<T>::begin(const std::vector<Table>& tables) {
  make_events();
  for (int32_t i : analysis_.gradient_order) {
    if (analysis_.dense_gradient[i] && !kept_[i]) reserve();
  }
  std::vector<size_t> at;
  size_t bytes = 0;
  for (const Table& table : tables) {
    at.push_back(bytes);
    if (!table.dense) bytes += lines(table.slots.size() * table.width * sizeof(T));
  }
  tables_.reserve(bytes);
  table_at_ = std::move(at);
}

// `copies` on the lane of the mirror, after what the present lane has been given.
template <class T>
template <class F>
void Mirror<T>::behind(int32_t param, F&& copies) {
  made_[param]->record();
  const int lane = device_->lane();
  device_->use_lane(Device::kMirror);
  made_[param]->wait();
  copies();
  device_->use_lane(lane);
  progress_.finished(param);
}

template <class T>
void Mirror<T>::download(T* to, const T* from, int64_t count) {
  device_->download(to, reinterpret_cast<Address>(from), count * sizeof(T));
}

template <class T>
void Mirror<T>::record(int32_t param) {
  for (const auto& slab : here_[param]) slab->record();
}

// In slabs, of which the first travel on while the last are copied.
template <class T>
void Mirror<T>::leave(int32_t param, const T* from) {
  if (kept_[param]) {
    made_[param]->record();
    progress_.finished(param);
    return;
  }
  behind(param, [&] {
    const int64_t slab = analysis_.slab[param];
    for (int64_t at = 0; at < sizes_[param]; at += slab) {
      download(dense(param) + at, from + at, std::min(slab, sizes_[param] - at));
      here_[param][at / slab]->record();
    }
  });
}

template <class T>
void Mirror<T>::leave_rows(int32_t param, size_t table, const T* from, int64_t count) {
  behind(param, [&] {
    download(rows(table), from, count);
    record(param);
  });
}

template <class T>
void Mirror<T>::leave_factors(int32_t param, DeviceFactors& f) {
  behind(param, [&] {
    download(f.left_here.at<T>(), f.left.as<T>(), f.of.rows * f.of.k);
    download(f.right_here.at<T>(), f.right.as<T>(), f.of.rows * f.of.n);
    record(param);
  });
}

template <class T>
void Mirror<T>::finish() {
  armed_ = false;
  progress_.finish();
}

template <class T>
void Mirror<T>::fail() {
  armed_ = false;
  progress_.fail();
}

template <class T>
bool Mirror<T>::wait(int32_t param, int64_t begin, int64_t end) const {
  if (!progress_.wait(param, begin, end)) return false;
  try {
    const Current here(*device_);
    const int64_t slab = analysis_.slab[param];
    for (int64_t at = begin / slab; at * slab < end; ++at) here_[param][at]->synchronize();
  } catch (const DeviceFault&) {  // which the run itself raises, where it was launched
    return false;
  }
  return true;
}

template class Mirror<float>;
template class Mirror<double>;

}  // namespace cavs::cuda
