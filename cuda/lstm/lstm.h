// One LSTM of a program, run by cuDNN over all chains of a batch.
#pragma once

#include <memory>
#include <vector>

#include "cuda/launch/kernel_library.h"
#include "cuda/launch/lru_cache.h"
#include "cuda/lstm/chains.h"
#include "cuda/lstm/cudnn.h"
#include "cuda/memory/allocation.h"
#include "exec/program.h"

namespace cavs::cuda {

// Device copies of Chains.
struct ChainArrays {
  const int32_t *row_of = nullptr, *position_of = nullptr, *lengths = nullptr;
};

template <class T>
class Lstm {
 public:
  // weight: of [x, h before, 1], see kLstm; its pieces are parts of `params` and, if they have a
  // gradient, of `grads`. backward: grad() follows every run(). Throws DeviceFault if the library
  // refuses the LSTM.
  Lstm(std::shared_ptr<Device> device, std::shared_ptr<const KernelLibrary<T>> library,
       std::shared_ptr<const Cudnn> cudnn, const Weight& weight, int32_t input, int32_t hidden,
       const std::vector<T*>& params, const std::vector<T*>& grads, bool backward);

  // Prepare descriptors and memory for a shape of batch.
  void bind(const Chains& chains);
  // Set the arrays of a batch.
  void set_arrays(const ChainArrays& at) { at_ = at; }
  // Copy the parameters into the library's weights, after they changed.
  void pack() const;
  // On the current lane: h = LSTM(x), over the rows of all vertices.
  void run(const Rows<T>& x, Target h) const;
  // The cotangent of x from that of h; the gradients of the weights stay in this object.
  void grad(const Rows<T>& dh, Target dx) const;
  // Add the gradients of one parameter's pieces to its gradient.
  void weight_grad(int32_t param) const;
  size_t bytes() const;

 private:
  static constexpr int kGates = 4;
  // Consecutive entries of pieces_ that belong to a parameter.
  struct Pieces {
    int32_t param, first, count;
  };

  void describe(uint32_t padding, Handle rnn) const;
  void locate_weights(const Weight& weight, const std::vector<T*>& params,
                      const std::vector<T*>& grads);
  Address matrix(int32_t id, int64_t columns, bool bias) const;
  const Descriptor& rnn(bool fixed) const { return fixed ? *padded_ : *packed_; }
  // Descriptors for sequences of some lengths. Immutable and numbered uniquely, because a graph may
  // refer to them.
  struct Sequences {
    std::unique_ptr<Descriptor> x, y, state;
    bool fixed;
    uint64_t number;
    size_t work_bytes, reserve_bytes;
  };
  Sequences describe_sequences(const Chains& chains);
  // A recorded call of the library: equal bytes are the same call.
  struct Work {
    const Lstm* lstm;
    const Sequences* sequences;
    uint64_t number;  // number of the sequences
    const int32_t* lengths;
    Address x, y, dx, dy, work, reserve;
  };
  void call(Call call) const;
  static void issue_forward(const void* work, int lane, Handle stream);
  static void issue_backward_data(const void* work, int lane, Handle stream);
  static void issue_backward_weights(const void* work, int lane, Handle stream);
  void gather(const Rows<T>& rows, Address to) const;
  void scatter(Address from, int32_t width, Target to) const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<const KernelLibrary<T>> library_;
  std::shared_ptr<const Cudnn> cudnn_;
  int32_t input_, hidden_;
  bool backward_;
  std::unique_ptr<Descriptor> padded_, packed_;  // for sequences of equal lengths, of any lengths
  LruCache<std::vector<int32_t>, Sequences> sequences_;  // by lengths
  const Sequences* current_ = nullptr;
  uint64_t described_ = 0;
  size_t weight_bytes_ = 0;
  int32_t positions_ = 0;
  ChainArrays at_;
  DeviceMemory weights_, weight_grads_, pieces_;
  DeviceMemory rows_, work_, reserve_;
  Address x_at_ = 0, y_at_ = 0, dx_at_ = 0, dy_at_ = 0;  // offsets in rows_
  int32_t packs_ = 0;
  std::vector<Pieces> unpacks_;  // by parameter with a gradient
};

}  // namespace cavs::cuda
