// A module of compiled kernels.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver/device.h"

namespace cavs::cuda {

// Loaded kernels. Unloaded with the object, after the last of them has finished.
class Module {
 public:
  Module(std::shared_ptr<Device> device, const std::string& image);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Handle function(const std::string& name) const { return device_->function(module_, name); }

 private:
  std::shared_ptr<Device> device_;
  Handle module_ = nullptr;
};

}  // namespace cavs::cuda
