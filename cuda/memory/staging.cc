#include "cuda/memory/staging.h"

#include <cstring>

namespace cavs::cuda {
Staging::Staging(std::shared_ptr<Device> device)
    : device_(std::move(device)), buffers_{Buffer(device_), Buffer(device_)} {}

void Staging::clear() {
  parity_ = 1 - parity_;
  items_.clear();
  bytes_ = 0;
}

int32_t Staging::add(const void* from, size_t bytes) {
  items_.push_back({bytes == 0 ? nullptr : from, bytes, bytes_});
  bytes_ += aligned(bytes);
  return static_cast<int32_t>(items_.size()) - 1;
}

void Staging::reserve() {
  for (Buffer& each : buffers_) {  // both: no batch is the largest twice
    each.host.reserve(bytes_);
    each.memory.reserve(bytes_);
  }
}

void Staging::upload() {
  Buffer& to = current();
  to.copied.synchronize();  // it reads the page-locked memory
  for (const Item& p : items_) {
    if (p.bytes > 0) std::memcpy(to.host.at<char>(p.offset), p.from, p.bytes);
  }
  device_->use_lane(Device::kCopies);
  to.read.wait();
  device_->upload(to.memory.at(), to.host.at<char>(), bytes_);
  to.copied.record();
  device_->use_lane(0);
  to.copied.wait();
}

}  // namespace cavs::cuda
