// cuDNN, resolved at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/driver/device.h"
#include "cuda/launch/cublaslt.h"

namespace cavs::cuda {

// Constants of cudnn.h, the same in all versions since 8.
namespace cudnn {
constexpr int kFloat = 0, kDouble = 1;         // cudnnDataType_t
constexpr int kDefaultMath = 0, kFmaMath = 3;  // cudnnMathType_t
constexpr int kStandard = 0;                   // cudnnRNNAlgo_t
constexpr int kLstm = 2;                       // cudnnRNNMode_t
constexpr int kInputBias = 1;                  // cudnnRNNBiasMode_t: one bias, added with the input
constexpr int kUnidirectional = 0;             // cudnnDirectionMode_t
constexpr int kLinearInput = 0;                // cudnnRNNInputMode_t
constexpr int kUnpacked = 0, kPacked = 1;      // cudnnRNNDataLayout_t, time step by time step
constexpr uint32_t kPaddedDisabled = 0, kPaddedEnabled = 1;
constexpr int kInference = 0, kTraining = 1;  // cudnnForwardMode_t
constexpr int kAdd = 0;                       // cudnnWgradMode_t
}  // namespace cudnn

class Cudnn {
 public:
  // Requires a DeviceLock. precision: of float32 products, not kBfloat16. wide: float64. Throws
  // DeviceFault if the library cannot be loaded, is older than 9.0, or refuses the device.
  Cudnn(std::shared_ptr<Device> device, const std::string& library, Precision precision, bool wide);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  // Entry points with the signatures of the library; results are cudnnStatus_t, 0 is success.
  struct Entries {
    // cure: the hint of errors.
    Entries(const std::string& library, const std::string& cure);
    size_t (*version)();
    const char* (*error)(int);
    int (*create)(Handle*);
    int (*destroy)(Handle);
    int (*set_stream)(Handle, Handle);
    int (*create_tensor)(Handle*);
    int (*set_tensor)(Handle, int, int, const int*, const int*);
    int (*get_tensor)(Handle, int, int*, int*, int*, int*);
    int (*destroy_tensor)(Handle);
    int (*create_dropout)(Handle*);
    int (*set_dropout)(Handle, Handle, float, Address, size_t, unsigned long long);
    int (*destroy_dropout)(Handle);
    int (*create_rnn)(Handle*);
    int (*set_rnn)(Handle, int, int, int, int, int, int, int, int, int32_t, int32_t, int32_t,
                   int32_t, Handle, uint32_t);
    int (*destroy_rnn)(Handle);
    int (*create_data)(Handle*);
    int (*set_data)(Handle, int, int, int, int, int, const int*, void*);
    int (*destroy_data)(Handle);
    int (*weight_space)(Handle, Handle, size_t*);
    int (*weight_params)(Handle, Handle, int32_t, size_t, Address, int32_t, Handle, Address*,
                         Handle, Address*);
    int (*temp_spaces)(Handle, Handle, int, Handle, size_t*, size_t*);
    int (*forward)(Handle, Handle, int, const int32_t*, Handle, Address, Handle, Address, Handle,
                   Address, Address, Handle, Address, Address, size_t, Address, size_t, Address,
                   size_t, Address);
    int (*backward_data)(Handle, Handle, const int32_t*, Handle, Address, Address, Handle, Address,
                         Handle, Address, Address, Address, Handle, Address, Address, Address,
                         size_t, Address, size_t, Address, size_t, Address);
    int (*backward_weights)(Handle, Handle, int, const int32_t*, Handle, Address, Handle, Address,
                            Handle, Address, size_t, Address, size_t, Address, size_t, Address);
  };
  const Entries& calls() const { return entries_; }
  // Throws DeviceFault with the call and the library's description of `status`.
  void check(int status, const char* call) const;
  // The handle for calls on the current lane, set to its stream.
  Handle handle() const { return handle(device_->lane(), device_->stream()); }
  Handle handle(int lane, Handle stream) const;
  int data_type() const { return data_type_; }
  int math_type() const { return math_type_; }
  Handle no_dropout() const { return dropout_; }

 private:
  void release() noexcept;

  std::shared_ptr<Device> device_;
  std::string cure_;
  Entries entries_;
  int data_type_, math_type_;
  Handle handles_[Device::kLanes] = {}, dropout_ = nullptr;
};

// A descriptor of the library, owned.
class Descriptor {
 public:
  using Create = int (*)(Handle*);
  using Destroy = int (*)(Handle);
  Descriptor(const Cudnn& cudnn, Create create, Destroy destroy, const char* call)
      : destroy_(destroy) {
    cudnn.check(create(&of_), call);
  }
  ~Descriptor() { destroy_(of_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Handle operator*() const { return of_; }

 private:
  Handle of_ = nullptr;
  Destroy destroy_;
};

}  // namespace cavs::cuda
