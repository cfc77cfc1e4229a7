// Growing allocations: device memory, and page-locked host memory.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/driver/device.h"

namespace cavs::cuda {

// Device memory that grows and never shrinks. Growing discards the contents.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void reserve(size_t bytes);
  Address at(size_t offset = 0) const { return address_ + offset; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(address_);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  Address address_ = 0;
  size_t bytes_ = 0;
};

// Page-locked host memory that grows and never shrinks: copies from it need no staging. It is
// released after the last copy that uses it.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void reserve(size_t bytes);
  template <class T>
  T* at(size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(data_) + offset);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace cavs::cuda
