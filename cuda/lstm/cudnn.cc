#include "cuda/lstm/cudnn.h"

#include <dlfcn.h>

#include "cuda/driver/context.h"

namespace cavs::cuda {
namespace {

constexpr size_t kOldest = 90000;  // 9.0.0 in the format of cudnnGetVersion

std::string cure(const std::string& install) {
  return "cudnn='never' does without it; " + install + " --upgrade brings it";
}

}  // namespace

Cudnn::Entries::Entries(const std::string& library, const std::string& cure) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw DeviceFault(std::string("cuDNN cannot be loaded: ") + dlerror(), cure);
  }
  const auto find = [&](auto& entry, const char* name) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) throw DeviceFault(library + " has no " + name, cure);
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(symbol);
  };
  find(version, "cudnnGetVersion");
  find(error, "cudnnGetErrorString");
  find(create, "cudnnCreate");
  find(destroy, "cudnnDestroy");
  find(set_stream, "cudnnSetStream");
  find(create_tensor, "cudnnCreateTensorDescriptor");
  find(set_tensor, "cudnnSetTensorNdDescriptor");
  find(get_tensor, "cudnnGetTensorNdDescriptor");
  find(destroy_tensor, "cudnnDestroyTensorDescriptor");
  find(create_dropout, "cudnnCreateDropoutDescriptor");
  find(set_dropout, "cudnnSetDropoutDescriptor");
  find(destroy_dropout, "cudnnDestroyDropoutDescriptor");
  find(create_rnn, "cudnnCreateRNNDescriptor");
  find(set_rnn, "cudnnSetRNNDescriptor_v8");
  find(destroy_rnn, "cudnnDestroyRNNDescriptor");
  find(create_data, "cudnnCreateRNNDataDescriptor");
  find(set_data, "cudnnSetRNNDataDescriptor");
  find(destroy_data, "cudnnDestroyRNNDataDescriptor");
  find(weight_space, "cudnnGetRNNWeightSpaceSize");
  find(weight_params, "cudnnGetRNNWeightParams");
  find(temp_spaces, "cudnnGetRNNTempSpaceSizes");
  find(forward, "cudnnRNNForward");
  find(backward_data, "cudnnRNNBackwardData_v8");
  find(backward_weights, "cudnnRNNBackwardWeights_v8");
}

Cudnn::Cudnn(std::shared_ptr<Device> device, const std::string& library, Precision precision,
             bool wide)
    : device_(std::move(device)),
      cure_(cure(device_->driver().install)),
      entries_(library, cure_),
      data_type_(wide ? cudnn::kDouble : cudnn::kFloat),
      // The default math type would round operands of float32 products to tf32.
      math_type_(!wide && precision == Precision::kFloat32 ? cudnn::kFmaMath
                                                           : cudnn::kDefaultMath) {
  const size_t found = entries_.version();
  if (found < kOldest) {
    throw DeviceFault("cuDNN " + library + " is of version " + std::to_string(found) +
                          ", but LSTMs need " + std::to_string(kOldest) + " or newer",
                      cure_);
  }
  try {
    for (Handle& handle : handles_) check(entries_.create(&handle), "cudnnCreate");
    check(entries_.create_dropout(&dropout_), "cudnnCreateDropoutDescriptor");
    check(entries_.set_dropout(dropout_, handles_[0], 0, 0, 0, 0), "cudnnSetDropoutDescriptor");
  } catch (...) {
    release();
    throw;
  }
}

Cudnn::~Cudnn() { release(); }

void Cudnn::release() noexcept {
  if (dropout_ != nullptr) entries_.destroy_dropout(dropout_);
  const CurrentContext here(*device_, std::nothrow);
  if (!here) return;
  device_->drain();
  for (Handle handle : handles_) {
    if (handle != nullptr) entries_.destroy(handle);
  }
}

void Cudnn::check(int status, const char* call) const {
  if (status == 0) return;
  device_->check_kernels(call);
  throw DeviceFault(std::string(call) + ": " + entries_.error(status) + " (status " +
                        std::to_string(status) + " of cuDNN)",
                    cure_);
}

Handle Cudnn::handle(int lane, Handle stream) const {
  Handle handle = handles_[lane];
  check(entries_.set_stream(handle, stream), "cudnnSetStream");
  return handle;
}

}  // namespace cavs::cuda
