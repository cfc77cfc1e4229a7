// Data of the stand-in for cuDNN: an LSTM of one layer in one direction, as documented for cuDNN 9,
// with constants of its headers. Everything else is refused as not supported.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "device_state.h"

namespace twin::cudnn {

enum Status {
  kOk = 0,
  kNotReadyDnn = 1001,
  kBadParam = 2000,
  kTooSmall = 2006,
  kRefused = 3000,
  kExecutionFailed = 5000
};
enum DataType { kFloat = 0, kDouble = 1 };
enum Math { kDefaultMath = 0, kFma = 3 };
enum Layout { kSequenceUnpacked = 0, kSequencePacked = 1 };
constexpr int kGates = 4;                // input, forget, new memory, output
constexpr size_t kHead = 64, kGap = 48;  // header of a reserve; gap between matrices of the weights

struct Handle {
  CUstream stream = nullptr;
};
struct Tensor {
  int type = -1, dims = 0;
  int size[8] = {}, stride[8] = {};
};
struct Dropout {
  bool set = false;
};
struct Rnn {
  int type = -1, math = 0;
  int64_t input = 0, hidden = 0;
  bool padded = false;

  size_t element() const { return type == kDouble ? 8 : 4; }
  // Biases first, then recurrent matrices, with gaps: the layout must not be guessed.
  size_t bias_at(int gate) const { return gate * (hidden * element() + kGap); }
  size_t matrix_at(int id) const {
    const size_t recurrent = hidden * hidden * element() + kGap;
    const size_t of_input = hidden * input * element() + kGap;
    const size_t start = bias_at(kGates);
    return id >= kGates ? start + (id - kGates) * recurrent
                        : start + kGates * recurrent + id * of_input;
  }
  size_t weight_bytes() const { return matrix_at(kGates - 1) + hidden * input * element(); }
};
struct Data {
  int type = -1, layout = -1, longest = 0, vector = 0;
  std::vector<int> lengths;

  bool fixed() const {
    for (const int length : lengths)
      if (length != longest) return false;
    return true;
  }
  // Number of sequences that have a step; if packed, these are the first ones.
  int present(int step) const {
    int n = 0;
    for (const int length : lengths) n += length > step;
    return n;
  }
  int64_t rows() const {
    if (layout != kSequencePacked) return int64_t{longest} * static_cast<int64_t>(lengths.size());
    int64_t n = 0;
    for (const int length : lengths) n += length;
    return n;
  }
  // The row of a step and sequence, or -1.
  std::vector<std::vector<int64_t>> places() const {
    std::vector<std::vector<int64_t>> result;
    int64_t next = 0;
    for (int t = 0; t < longest; ++t) {
      auto& step = result.emplace_back();
      for (const int length : lengths) {
        if (layout != kSequencePacked)
          step.push_back(length > t ? next : -1), ++next;
        else
          step.push_back(length > t ? next++ : -1);
      }
    }
    return result;
  }
};

// The calls that have filled a reserve, and their arguments.
struct Head {
  uint64_t stage;  // 1: forward, 2: gradients of the data
  uint64_t rows, input, hidden;
};
static_assert(sizeof(Head) <= kHead);

inline size_t reserve_bytes(const Rnn& rnn, const Data& x) {  // with gates and c of every row
  return kHead + static_cast<size_t>(x.rows() * (kGates + 1) * rnn.hidden) * rnn.element();
}

// Arguments of a launched call, by value: descriptors may change before it runs.
struct Work {
  Rnn rnn;
  Data data;  // x; y differs in its width
  const int32_t* lengths;
  const void *x, *y, *dy, *weights;
  void *out, *work, *reserve;
  size_t work_bytes;
  bool training = true;

  bool reduced() const { return rnn.type == kFloat && rnn.math == kDefaultMath; }
  template <class T>
  const T* matrix(const void* space, int id) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(space) + rnn.matrix_at(id));
  }
  template <class T>
  const T* bias(const void* space, int gate) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(space) + rnn.bias_at(gate));
  }
  template <class T>
  T* kept() const {
    return reinterpret_cast<T*>(static_cast<char*>(reserve) + kHead);
  }
  Head head(uint64_t stage) const {
    return {stage, static_cast<uint64_t>(data.rows()), static_cast<uint64_t>(rnn.input),
            static_cast<uint64_t>(rnn.hidden)};
  }
  // Check lengths on the device, and the reserve of the previous call.
  bool check(uint64_t before) const {
    std::string wrong;
    for (size_t i = 0; i < data.lengths.size(); ++i)
      if (lengths[i] != data.lengths[i]) wrong = "devSeqLengths differs from the descriptor";
    const Head wanted = head(before);
    if (before != 0 && std::memcmp(&wanted, reserve, sizeof wanted) != 0)
      wrong = "the reserve space is not what the call before left";
    if (!wrong.empty()) device().fail({kLaunchFailed, "cuDNN: " + wrong});
    return wrong.empty();
  }
  void leave(uint64_t stage) const {
    const Head now = head(stage);
    if (reserve != nullptr) std::memcpy(reserve, &now, sizeof now);
  }
};

template <class T>
void forward(const Work& w);
template <class T>
void backward_data(const Work& w);
template <class T>
void backward_weights(const Work& w);

}  // namespace twin::cudnn
