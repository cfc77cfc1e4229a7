#include "cuda/memory/parameters.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cavs::cuda {
template <class T>
Parameters<T>::Parameters(std::shared_ptr<Device> device, std::vector<Parameter<T>> host)
    : device_(std::move(device)),
      host_(std::move(host)),
      values_(device_),
      state_values_(device_),
      outcomes_(device_) {
  size_t bytes = 0;
  for (const Parameter<T>& p : host_) bytes += aligned(p.size * sizeof(T));
  values_.reserve(bytes);
  size_t at = 0;
  for (const Parameter<T>& p : host_) {
    sizes_.push_back(p.size);
    addresses_.push_back(reinterpret_cast<T*>(values_.at(at)));
    at += aligned(p.size * sizeof(T));
  }
  written_.assign(host_.size(), true);
  moved_.assign(host_.size(), false);
}

template <class T>
void Parameters<T>::upload() {
  bool any = false;
  const auto copy = [&](T* to, const T* from, int64_t size) {
    if (to == nullptr) return;
    device_->upload(reinterpret_cast<Address>(to), from, size * sizeof(T));
    any = true;
  };
  for (size_t i = 0; i < host_.size(); ++i) {
    if (written_[i]) copy(addresses_[i], host_[i].data, sizes_[i]);
  }
  written_.assign(host_.size(), false);
  for (size_t i = 0; states_written_ && i < states_.size(); ++i) {
    for (int32_t k = 0; k < kMostStates; ++k) copy(states_[i][k], host_states_[i][k], sizes_[i]);
  }
  states_written_ = false;
  // The host may write to its arrays again, and copies from pageable memory may run late.
  if (any) device_->synchronize();
}

template <class T>
void Parameters<T>::mark_moved(const std::vector<bool>& trained) {
  for (size_t i = 0; i < trained.size(); ++i) moved_[i] = moved_[i] || trained[i];
}

template <class T>
const typename Parameters<T>::States& Parameters<T>::states(const States& host,
                                                            std::shared_ptr<const void> owner) {
  if (host == host_states_) return states_;
  download();            // into the previous arrays
  host_states_.clear();  // in case allocation throws
  states_.clear();
  size_t bytes = 0;
  for (size_t i = 0; i < host.size(); ++i) {
    const auto held = std::ranges::count_if(host[i], [](const T* of) { return of != nullptr; });
    bytes += aligned(sizes_[i] * sizeof(T)) * held;
  }
  state_values_.reserve(bytes);
  size_t at = 0;
  const auto take = [&](const T* of, int64_t size) -> T* {
    if (of == nullptr) return nullptr;
    T* address = reinterpret_cast<T*>(state_values_.at(at));
    at += aligned(size * sizeof(T));
    return address;
  };
  for (size_t i = 0; i < host.size(); ++i) {
    states_.emplace_back();
    for (int32_t k = 0; k < kMostStates; ++k) states_[i][k] = take(host[i][k], sizes_[i]);
  }
  host_states_ = host;
  owner_ = std::move(owner);
  states_written_ = true;
  upload();
  return states_;
}

template <class T>
void Parameters<T>::invalidate() {
  outcomes_.forget();
  moved_.assign(host_.size(), false);
  written_.assign(host_.size(), true);
  states_written_ = true;
}

template <class T>
void Parameters<T>::write(const std::vector<int32_t>& params) {
  for (int32_t p : params) written_.at(p) = true;
}

template <class T>
void Parameters<T>::write_rows(int32_t param, const std::vector<int32_t>& rows, int64_t width) {
  const int64_t height = sizes_.at(param) / width;
  if (sizes_[param] % width != 0) {
    throw std::invalid_argument("rows of " + std::to_string(width) + " elements in one of " +
                                std::to_string(sizes_[param]));
  }
  for (int32_t row : rows) {
    if (row < 0 || row >= height) {
      throw std::out_of_range("row " + std::to_string(row) + " of " + std::to_string(height));
    }
  }
  auto of = std::find_if(rows_written_.begin(), rows_written_.end(),
                         [&](const RowsWritten& r) { return r.param == param; });
  if (of == rows_written_.end()) of = rows_written_.insert(of, {param, width, {}, {}});
  std::vector<int32_t>& all = of->rows;
  all.insert(all.end(), rows.begin(), rows.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

template <class T>
void Parameters<T>::gather_rows() {
  std::erase_if(rows_written_, [&](const RowsWritten& r) { return written_[r.param]; });
  for (RowsWritten& r : rows_written_) {
    r.values.clear();
    for (int32_t row : r.rows) {
      const T* from = host_[r.param].data + row * r.width;
      r.values.insert(r.values.end(), from, from + r.width);
    }
  }
}

// Values are first copied to a buffer: if the device fails halfway, the host's arrays stay
// unchanged.
template <class T>
bool Parameters<T>::download() {
  if (!outcomes_.moved()) return false;
  struct Copy {
    T* to;
    const T* from;
    int64_t size;
  };
  std::vector<Copy> copies;
  int64_t elements = 0;
  const auto add = [&](T* to, const T* from, int64_t size) {
    if (from == nullptr) return;
    copies.push_back({to, from, size});
    elements += size;
  };
  for (size_t i = 0; i < host_.size(); ++i) {
    if (!moved_[i]) continue;
    add(host_[i].data, addresses_[i], sizes_[i]);
    if (states_.empty()) continue;
    for (int32_t k = 0; k < kMostStates; ++k) add(host_states_[i][k], states_[i][k], sizes_[i]);
  }
  const auto buffer = std::make_unique_for_overwrite<T[]>(elements);
  T* at = buffer.get();
  for (const Copy& c : copies) {
    device_->download(at, reinterpret_cast<Address>(c.from), c.size * sizeof(T));
    at += c.size;
  }
  device_->synchronize();
  const T* from = buffer.get();
  for (const Copy& c : copies) {
    std::copy_n(from, c.size, c.to);
    from += c.size;
  }
  outcomes_.forget();
  moved_.assign(host_.size(), false);
  return true;
}

template <class T>
std::optional<int64_t> Parameters<T>::lost() const {
  if (device_->works()) return std::nullopt;
  return outcomes_.counted();
}

template class Parameters<float>;
template class Parameters<double>;

}  // namespace cavs::cuda
