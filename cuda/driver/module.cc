#include "cuda/driver/module.h"

#include "cuda/driver/context.h"

namespace cavs::cuda {

Module::Module(std::shared_ptr<Device> device, const std::string& image)
    : device_(std::move(device)) {
  const Driver& d = device_->driver();
  d.check(d.module_load(&module_, image.data()), "cuModuleLoadData");
}

Module::~Module() {
  if (module_ == nullptr) return;
  const CurrentContext here(*device_, std::nothrow);
  if (!here) return;
  device_->drain();
  device_->driver().module_unload(module_);
}

}  // namespace cavs::cuda
