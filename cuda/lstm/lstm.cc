#include "cuda/lstm/lstm.h"

#include <algorithm>

namespace cavs::cuda {
namespace {

constexpr int kDims = 3;
constexpr size_t kMostSequences = 1024;  // as many as ReplayCache has shapes

// Rows of `width` values, read in the order of `index`.
template <class T>
Rows<T> by_index(const void* data, int64_t stride, int64_t base, const int32_t* index,
                 int32_t width) {
  return {.data = data,
          .stride = stride,
          .base = base,
          .index = index,
          .map = RowMap::kIndex,
          .width = width};
}

}  // namespace

template <class T>
Lstm<T>::Lstm(std::shared_ptr<Device> device, std::shared_ptr<const KernelLibrary<T>> library,
              std::shared_ptr<const Cudnn> cudnn, const Weight& weight, int32_t input,
              int32_t hidden, const std::vector<T*>& params, const std::vector<T*>& grads,
              bool backward)
    : device_(std::move(device)),
      library_(std::move(library)),
      cudnn_(std::move(cudnn)),
      input_(input),
      hidden_(hidden),
      backward_(backward),
      sequences_(kMostSequences),
      weights_(device_),
      weight_grads_(device_),
      pieces_(device_),
      rows_(device_),
      work_(device_),
      reserve_(device_) {
  const Cudnn::Entries& c = cudnn_->calls();
  const auto make = [&](std::unique_ptr<Descriptor>& to, Descriptor::Create create,
                        Descriptor::Destroy destroy, const char* call) {
    to = std::make_unique<Descriptor>(*cudnn_, create, destroy, call);
  };
  make(padded_, c.create_rnn, c.destroy_rnn, "cudnnCreateRNNDescriptor");
  make(packed_, c.create_rnn, c.destroy_rnn, "cudnnCreateRNNDescriptor");
  describe(cudnn::kPaddedEnabled, **padded_);
  describe(cudnn::kPaddedDisabled, **packed_);
  cudnn_->check(c.weight_space(cudnn_->handle(), *rnn(true), &weight_bytes_),
                "cudnnGetRNNWeightSpaceSize");
  weights_.reserve(weight_bytes_);
  device_->zero(weights_.at(), weight_bytes_);  // for an LSTM without bias
  if (backward_) weight_grads_.reserve(weight_bytes_);
  locate_weights(weight, params, grads);
  // Fail here if the library refuses the LSTM, instead of during a run.
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1}, {2, 1}}) {
    Chains chains;
    chains.lengths = lengths;
    for (int32_t length : lengths) chains.row_of.resize(chains.row_of.size() + length);
    bind(chains);
  }
}

template <class T>
void Lstm<T>::describe(uint32_t padding, Handle rnn) const {
  const int type = cudnn_->data_type();
  cudnn_->check(cudnn_->calls().set_rnn(rnn, cudnn::kStandard, cudnn::kLstm, cudnn::kInputBias,
                                        cudnn::kUnidirectional, cudnn::kLinearInput, type, type,
                                        cudnn_->math_type(), input_, hidden_, hidden_, 1,
                                        cudnn_->no_dropout(), padding),
                "cudnnSetRNNDescriptor_v8");
}

// Address of a matrix [hidden, columns], or of its bias [hidden], in the library's weights.
template <class T>
Address Lstm<T>::matrix(int32_t id, int64_t columns, bool bias) const {
  const Cudnn::Entries& c = cudnn_->calls();
  const Descriptor matrix(*cudnn_, c.create_tensor, c.destroy_tensor,
                          "cudnnCreateTensorDescriptor");
  const Descriptor vector(*cudnn_, c.create_tensor, c.destroy_tensor,
                          "cudnnCreateTensorDescriptor");
  Address at = 0, bias_at = 0;
  cudnn_->check(c.weight_params(cudnn_->handle(), *rnn(true), 0, weight_bytes_, weights_.at(), id,
                                *matrix, &at, *vector, &bias_at),
                "cudnnGetRNNWeightParams");
  int type = 0, dims = 0, sizes[kDims] = {}, strides[kDims] = {};
  cudnn_->check(c.get_tensor(bias ? *vector : *matrix, kDims, &type, &dims, sizes, strides),
                "cudnnGetTensorNdDescriptor");
  const int64_t wanted = bias ? 1 : columns;
  const Address found = bias ? bias_at : at;
  const size_t end = found - weights_.at() + sizeof(T) * hidden_ * wanted;
  if (dims != kDims || sizes[1] != hidden_ || sizes[2] != wanted || strides[1] != wanted ||
      type != cudnn_->data_type() || found < weights_.at() || end > weight_bytes_) {
    throw DeviceFault("cuDNN lays weights out as [" + std::to_string(sizes[1]) + ", " +
                          std::to_string(sizes[2]) + "], not as [" + std::to_string(hidden_) +
                          ", " + std::to_string(wanted) + "]",
                      "cudnn=\"never\" does without it");
  }
  return found;
}

// Pieces of a Weight are rows of x or h; the matrices of the library are their transposes.
template <class T>
void Lstm<T>::locate_weights(const Weight& weight, const std::vector<T*>& params,
                             const std::vector<T*>& grads) {
  std::vector<Piece<T>> pieces;
  std::vector<Address> addresses;
  for (const WeightPiece& q : weight.pieces) {
    const auto gate = static_cast<int32_t>(q.n0 / hidden_);
    const bool recurrent = q.k0 == input_, bias = q.k0 == input_ + hidden_;
    const int64_t columns = recurrent ? hidden_ : input_;
    addresses.push_back(matrix(recurrent ? kGates + gate : gate, columns, bias));
    pieces.push_back({params[q.param] + q.offset, reinterpret_cast<void*>(addresses.back()),
                      q.col_stride, q.row_stride, q.cols, q.rows, q.rows});
  }
  packs_ = static_cast<int32_t>(pieces.size());
  for (size_t param = 0; backward_ && param < grads.size(); ++param) {
    const auto first = static_cast<int32_t>(pieces.size());
    for (size_t i = 0; grads[param] != nullptr && i < weight.pieces.size(); ++i) {
      const WeightPiece& q = weight.pieces[i];
      if (q.param != static_cast<int32_t>(param)) continue;
      const Address from = weight_grads_.at(addresses[i] - weights_.at());
      pieces.push_back({reinterpret_cast<const T*>(from), grads[param] + q.offset, 1, q.rows,
                        q.rows, q.cols, q.row_stride});
    }
    const auto count = static_cast<int32_t>(pieces.size()) - first;
    if (count > 0) unpacks_.push_back({static_cast<int32_t>(param), first, count});
  }
  pieces_.reserve(pieces.size() * sizeof(Piece<T>));
  device_->upload(pieces_.at(), pieces.data(), pieces.size() * sizeof(Piece<T>));
  device_->synchronize();
}

template <class T>
typename Lstm<T>::Sequences Lstm<T>::describe_sequences(const Chains& chains) {
  const Cudnn::Entries& c = cudnn_->calls();
  Sequences made{};
  made.fixed = chains.fixed();
  made.number = ++described_;
  const auto sequences = static_cast<int>(chains.lengths.size());
  const int type = cudnn_->data_type(), layout = made.fixed ? cudnn::kUnpacked : cudnn::kPacked;
  for (const auto& [data, width] : {std::pair{&made.x, input_}, {&made.y, hidden_}}) {
    *data = std::make_unique<Descriptor>(*cudnn_, c.create_data, c.destroy_data,
                                         "cudnnCreateRNNDataDescriptor");
    cudnn_->check(c.set_data(***data, type, layout, chains.longest(), sequences, width,
                             chains.lengths.data(), nullptr),
                  "cudnnSetRNNDataDescriptor");
  }
  made.state = std::make_unique<Descriptor>(*cudnn_, c.create_tensor, c.destroy_tensor,
                                            "cudnnCreateTensorDescriptor");
  const int sizes[] = {1, sequences, hidden_}, strides[] = {sequences * hidden_, hidden_, 1};
  cudnn_->check(c.set_tensor(**made.state, type, kDims, sizes, strides),
                "cudnnSetTensorNdDescriptor");
  cudnn_->check(c.temp_spaces(cudnn_->handle(), *rnn(made.fixed),
                              backward_ ? cudnn::kTraining : cudnn::kInference, **made.x,
                              &made.work_bytes, &made.reserve_bytes),
                "cudnnGetRNNTempSpaceSizes");
  return made;
}

template <class T>
void Lstm<T>::bind(const Chains& chains) {
  positions_ = chains.positions();
  if (positions_ == 0) return;
  current_ = sequences_.find(chains.lengths);
  if (current_ == nullptr) {
    Sequences made = describe_sequences(chains);
    if (sequences_.full()) sequences_.drop_oldest();
    current_ = &sequences_.insert(chains.lengths, std::move(made));
  }
  const size_t of_x = aligned(sizeof(T) * positions_ * input_);
  const size_t of_y = aligned(sizeof(T) * positions_ * hidden_);
  rows_.reserve((of_x + of_y) * (backward_ ? 2 : 1));
  x_at_ = rows_.at();
  y_at_ = x_at_ + of_x;
  dx_at_ = y_at_ + of_y;
  dy_at_ = dx_at_ + of_x;
  work_.reserve(current_->work_bytes);
  reserve_.reserve(current_->reserve_bytes);
}

template <class T>
void Lstm<T>::pack() const {
  library_->pack(pieces_.as<Piece<T>>(), packs_);
}

template <class T>
void Lstm<T>::gather(const Rows<T>& rows, Address to) const {
  const Rows<T> in = by_index<T>(rows.data, rows.stride, rows.base, at_.row_of, rows.width);
  library_->copy_rows(in, 0, positions_, Target{reinterpret_cast<void*>(to), rows.width, 0});
}

template <class T>
void Lstm<T>::scatter(Address from, int32_t width, Target to) const {
  const auto* data = reinterpret_cast<const void*>(from);
  library_->copy_rows(by_index<T>(data, width, 0, at_.position_of, width), 0, positions_, to);
}

template <class T>
void Lstm<T>::call(Call call) const {
  const Work work{this,  current_, current_->number, at_.lengths, x_at_,
                  y_at_, dx_at_,   dy_at_,           work_.at(),  reserve_.at()};
  static_assert(kPlainBytes<Work>);
  device_->call(call, &work, sizeof(work));
}

// Initial states are zero (null); final states are not requested.
template <class T>
void Lstm<T>::issue_forward(const void* work, int lane, Handle stream) {
  const Work& w = *static_cast<const Work*>(work);
  const Lstm& of = *w.lstm;
  const Sequences& s = *w.sequences;
  const int mode = of.backward_ ? cudnn::kTraining : cudnn::kInference;
  of.cudnn_->check(of.cudnn_->calls().forward(
                       of.cudnn_->handle(lane, stream), *of.rnn(s.fixed), mode, w.lengths, **s.x,
                       w.x, **s.y, w.y, **s.state, 0, 0, **s.state, 0, 0, of.weight_bytes_,
                       of.weights_.at(), s.work_bytes, w.work, s.reserve_bytes, w.reserve),
                   "cudnnRNNForward");
}

template <class T>
void Lstm<T>::issue_backward_data(const void* work, int lane, Handle stream) {
  const Work& w = *static_cast<const Work*>(work);
  const Lstm& of = *w.lstm;
  const Sequences& s = *w.sequences;
  of.cudnn_->check(of.cudnn_->calls().backward_data(
                       of.cudnn_->handle(lane, stream), *of.rnn(s.fixed), w.lengths, **s.y, w.y,
                       w.dy, **s.x, w.dx, **s.state, 0, 0, 0, **s.state, 0, 0, 0, of.weight_bytes_,
                       of.weights_.at(), s.work_bytes, w.work, s.reserve_bytes, w.reserve),
                   "cudnnRNNBackwardData_v8");
}

template <class T>
void Lstm<T>::issue_backward_weights(const void* work, int lane, Handle stream) {
  const Work& w = *static_cast<const Work*>(work);
  const Lstm& of = *w.lstm;
  const Sequences& s = *w.sequences;
  of.cudnn_->check(of.cudnn_->calls().backward_weights(
                       of.cudnn_->handle(lane, stream), *of.rnn(s.fixed), cudnn::kAdd, w.lengths,
                       **s.x, w.x, **s.state, 0, **s.y, w.y, of.weight_bytes_,
                       of.weight_grads_.at(), s.work_bytes, w.work, s.reserve_bytes, w.reserve),
                   "cudnnRNNBackwardWeights_v8");
}

template <class T>
void Lstm<T>::run(const Rows<T>& x, Target h) const {
  if (positions_ == 0) return;
  gather(x, x_at_);
  call(&issue_forward);
  scatter(y_at_, hidden_, h);
}

// Gradients of weights are computed here as well: they need data that the library left for dx.
template <class T>
void Lstm<T>::grad(const Rows<T>& dh, Target dx) const {
  if (positions_ == 0) return;
  gather(dh, dy_at_);
  call(&issue_backward_data);
  scatter(dx_at_, input_, dx);
  if (unpacks_.empty()) return;
  device_->zero(weight_grads_.at(), weight_bytes_);  // the library accumulates
  call(&issue_backward_weights);
}

template <class T>
void Lstm<T>::weight_grad(int32_t param) const {
  if (positions_ == 0) return;
  for (const Pieces& of : unpacks_) {
    if (of.param == param) library_->unpack(pieces_.as<Piece<T>>() + of.first, of.count);
  }
}

template <class T>
size_t Lstm<T>::bytes() const {
  return weights_.bytes() + weight_grads_.bytes() + rows_.bytes() + work_.bytes() +
         reserve_.bytes() + pieces_.bytes();
}

template class Lstm<float>;
template class Lstm<double>;

}  // namespace cavs::cuda
