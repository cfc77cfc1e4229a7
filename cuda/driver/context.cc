#include "cuda/driver/context.h"

namespace cavs::cuda {

CurrentContext::CurrentContext(const Device& device) : device_(device) {
  const Driver& d = device.driver_;
  d.check(d.context_get(&before_), "cuCtxGetCurrent");
  d.check(d.context_set(device.context_), "cuCtxSetCurrent");
  entered_ = true;
}

CurrentContext::CurrentContext(const Device& device, std::nothrow_t) noexcept : device_(device) {
  const Driver& d = device.driver_;
  entered_ = d.context_get(&before_) == 0 && d.context_set(device.context_) == 0;
}

CurrentContext::~CurrentContext() {
  if (entered_) device_.driver_.context_set(before_);
}

}  // namespace cavs::cuda
