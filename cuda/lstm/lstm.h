// One LSTM of a program, over all chains of a batch, by cuDNN.
#pragma once

#include <memory>
#include <vector>

#include "cuda/launch/kernel_library.h"
#include "cuda/launch/lru_cache.h"
#include "cuda/lstm/chains.h"
#include "cuda/lstm/cudnn.h"
#include "exec/program.h"

namespace cavs::cuda {

// The chains of a batch on the device: for each place its row, and the reverse, and the lengths.
struct ChainArrays {
  const int32_t *row_of = nullptr, *place_of = nullptr, *lengths = nullptr;
};

template <class T>
class Lstm {
 public:
  // weight: of [x, h before, 1], as of a kLstm; its pieces are those of `params`, and of `grads`
  // where there is a gradient. backward: grad() follows every run(). Throws DeviceFault where the
  // library refuses such an LSTM.
  Lstm(std::shared_ptr<Device> device, std::shared_ptr<const Library<T>> library,
       std::shared_ptr<const Cudnn> cudnn, const Weight& weight, int32_t input, int32_t hidden,
       const std::vector<T*>& params, const std::vector<T*>& grads, bool backward);

  // What depends on the shape of the batch: descriptors and memory.
  void bind(const Chains& chains);
  // Each batch's own.
  void place(const ChainArrays& at) { at_ = at; }
  // After parameters have moved.
  void pack() const;
  // All on the present lane. h = the LSTM of x; rows are those of all vertices.
  void run(const Rows<T>& x, Target h) const;
  // The cotangent of x from that of h; those of the weights stay here.
  void grad(const Rows<T>& dh, Target dx) const;
  // Adds those of one parameter to its gradient.
  void weight_grad(int32_t param) const;
  size_t bytes() const;

 private:
  static constexpr int kGates = 4;
  // Pieces of weights as the library has them, as many as stand one after the other.
  struct Pieces {
    int32_t param, first, count;
  };

  void describe(uint32_t padding, Handle rnn) const;
  void place_weights(const Weight& weight, const std::vector<T*>& params,
                     const std::vector<T*>& grads);
  Address matrix(int32_t id, int64_t columns, bool bias) const;
  const Descriptor& rnn(bool fixed) const { return fixed ? *padded_ : *packed_; }
  // What the library is told of sequences of some lengths. A graph may hold on to it: it stays as
  // it is, and no two have the same number.
  struct Sequences {
    std::unique_ptr<Descriptor> x, y, state;
    bool fixed;
    uint64_t number;
    size_t work_bytes, reserve_bytes;
  };
  Sequences describe_sequences(const Chains& chains);
  // A call of the library as a command: the same bytes are the same call.
  struct Work {
    const Lstm* lstm;
    const Sequences* sequences;
    uint64_t number;  // of the sequences
    const int32_t* lengths;
    Address x, y, dx, dy, work, reserve;
  };
  void call(Call call) const;
  static void issue_forward(const void* work, int lane, Handle stream);
  static void issue_backward_data(const void* work, int lane, Handle stream);
  static void issue_backward_weights(const void* work, int lane, Handle stream);
  void gather(const Rows<T>& rows, Address to) const;
  void spread(Address from, int32_t width, Target to) const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<const Library<T>> library_;
  std::shared_ptr<const Cudnn> cudnn_;
  int32_t input_, hidden_;
  bool backward_;
  std::unique_ptr<Descriptor> padded_, packed_;        // of sequences that are all as long, of any
  Recent<std::vector<int32_t>, Sequences> sequences_;  // by their lengths
  const Sequences* bound_ = nullptr;
  uint64_t described_ = 0;
  size_t weight_bytes_ = 0;
  int32_t places_ = 0;
  ChainArrays at_;
  DeviceMemory weights_, weight_grads_, pieces_;
  DeviceMemory rows_, work_, reserve_;
  Address x_at_ = 0, y_at_ = 0, dx_at_ = 0, dy_at_ = 0;  // in rows_
  int32_t packs_ = 0;
  std::vector<Pieces> unpacks_;  // of each parameter with a gradient
};

}  // namespace cavs::cuda
