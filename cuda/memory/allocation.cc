#include "cuda/memory/allocation.h"

#include <algorithm>

#include "cuda/driver/context.h"

namespace cavs::cuda {
namespace {

// Batches differ in size: a quarter of slack avoids most reallocations.
size_t padded_size(size_t bytes, size_t old) {
  bytes = old == 0 ? bytes : std::max(bytes, old + old / 4);
  return aligned(bytes);
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (address_ != 0) device_->release(address_);
}

void DeviceMemory::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  bytes = padded_size(bytes, bytes_);
  if (address_ != 0) {
    device_->synchronize();  // running kernels may still read it
    device_->release(address_);
  }
  address_ = 0;
  bytes_ = 0;
  address_ = device_->allocate(bytes);
  bytes_ = bytes;
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  const CurrentContext here(*device_, std::nothrow);
  if (!here) return;
  device_->drain();
  device_->driver().pinned_release(data_);
}

void PinnedMemory::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  bytes = padded_size(bytes, bytes_);
  const Driver& d = device_->driver();
  if (data_ != nullptr) {
    device_->synchronize();
    d.check(d.pinned_release(data_), "cuMemFreeHost");
  }
  data_ = nullptr;
  bytes_ = 0;
  d.check(d.pinned_allocate(&data_, bytes, 0), "cuMemHostAlloc");
  bytes_ = bytes;
}

}  // namespace cavs::cuda
