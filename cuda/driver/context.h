// Scopes of a calling thread: the device's context is current, or the device is locked.
#pragma once

#include <exception>
#include <mutex>
#include <new>

#include "cuda/driver/device.h"

namespace cavs::cuda {

// Makes a device's context current on the calling thread and restores the previous one, which may
// belong to another library, at the end of the scope.
class CurrentContext {
 public:
  explicit CurrentContext(const Device& device);
  // For destructors: false if the driver is gone.
  CurrentContext(const Device& device, std::nothrow_t) noexcept;
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  const Device& device_;
  Handle before_ = nullptr;
  bool entered_ = false;
};

// Exclusive use of a device, whose streams, lanes and workspaces all its users share. If the scope
// ends by an exception, it first waits for the work that it launched. A thread that waits for the
// lock must not hold the GIL: the owner may need the GIL to allocate.
class DeviceLock {
 public:
  explicit DeviceLock(Device& device) : device_(device), lock_(device.mutex_), current_(device) {}
  ~DeviceLock() {
    if (std::uncaught_exceptions() > exceptions_) device_.recover();
  }
  DeviceLock(const DeviceLock&) = delete;
  DeviceLock& operator=(const DeviceLock&) = delete;

 private:
  Device& device_;
  const std::lock_guard<std::mutex> lock_;
  const CurrentContext current_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace cavs::cuda
