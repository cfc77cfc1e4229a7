#include "lstm.h"

#include <algorithm>

namespace cavs::cuda {
namespace {

constexpr int kDims = 3;

// Rows of `width` values that stand as `index` says, read in its order.
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
Lstm<T>::Lstm(std::shared_ptr<Device> device, std::shared_ptr<const Library<T>> library,
              std::shared_ptr<const Cudnn> cudnn, const Weight& weight, int32_t input,
              int32_t hidden, const std::vector<T*>& params, const std::vector<T*>& grads,
              bool backward)
    : device_(std::move(device)),
      library_(std::move(library)),
      cudnn_(std::move(cudnn)),
      input_(input),
      hidden_(hidden),
      backward_(backward),
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
  make(x_, c.create_data, c.destroy_data, "cudnnCreateRNNDataDescriptor");
  make(y_, c.create_data, c.destroy_data, "cudnnCreateRNNDataDescriptor");
  make(state_, c.create_tensor, c.destroy_tensor, "cudnnCreateTensorDescriptor");
  describe(cudnn::kPaddedEnabled, **padded_);
  describe(cudnn::kPaddedDisabled, **packed_);
  cudnn_->check(c.weight_space(cudnn_->handle(), *rnn(), &weight_bytes_),
                "cudnnGetRNNWeightSpaceSize");
  weights_.reserve(weight_bytes_);
  device_->zero(weights_.at(), weight_bytes_);  // where the LSTM has no bias
  if (backward_) weight_grads_.reserve(weight_bytes_);
  place_weights(weight, params, grads);
  // What the library refuses it refuses here, not in the middle of a run.
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

// Where the library has a matrix [hidden, columns] or its bias [hidden] in the space of weights.
template <class T>
Address Lstm<T>::matrix(int32_t id, int64_t columns, bool bias) const {
  const Cudnn::Entries& c = cudnn_->calls();
  const Descriptor matrix(*cudnn_, c.create_tensor, c.destroy_tensor,
                          "cudnnCreateTensorDescriptor");
  const Descriptor vector(*cudnn_, c.create_tensor, c.destroy_tensor,
                          "cudnnCreateTensorDescriptor");
  Address at = 0, bias_at = 0;
  cudnn_->check(c.weight_params(cudnn_->handle(), *rnn(), 0, weight_bytes_, weights_.at(), id,
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

// Pieces of parameters are rows of x or h; the library's matrices are their transposes.
template <class T>
void Lstm<T>::place_weights(const Weight& weight, const std::vector<T*>& params,
                            const std::vector<T*>& grads) {
  std::vector<Piece<T>> pieces;
  std::vector<Address> places;
  for (const WeightPiece& q : weight.pieces) {
    const auto gate = static_cast<int32_t>(q.n0 / hidden_);
    const bool recurrent = q.k0 == input_, bias = q.k0 == input_ + hidden_;
    const int64_t columns = recurrent ? hidden_ : input_;
    places.push_back(matrix(recurrent ? kGates + gate : gate, columns, bias));
    pieces.push_back({params[q.param] + q.offset, reinterpret_cast<void*>(places.back()),
                      q.col_stride, q.row_stride, q.cols, q.rows, q.rows});
  }
  packs_ = static_cast<int32_t>(pieces.size());
  for (size_t param = 0; backward_ && param < grads.size(); ++param) {
    const auto first = static_cast<int32_t>(pieces.size());
    for (size_t i = 0; grads[param] != nullptr && i < weight.pieces.size(); ++i) {
      const WeightPiece& q = weight.pieces[i];
      if (q.param != static_cast<int32_t>(param)) continue;
      const Address from = weight_grads_.at(places[i] - weights_.at());
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
void Lstm<T>::bind(const Chains& chains) {
  places_ = chains.places();
  if (places_ == 0) return;
  fixed_ = chains.fixed();
  const Cudnn::Entries& c = cudnn_->calls();
  const auto sequences = static_cast<int>(chains.lengths.size());
  const int type = cudnn_->data_type(), layout = fixed_ ? cudnn::kUnpacked : cudnn::kPacked;
  for (const auto& [data, width] : {std::pair{x_.get(), input_}, {y_.get(), hidden_}}) {
    cudnn_->check(c.set_data(**data, type, layout, chains.longest(), sequences, width,
                             chains.lengths.data(), nullptr),
                  "cudnnSetRNNDataDescriptor");
  }
  const int sizes[] = {1, sequences, hidden_}, strides[] = {sequences * hidden_, hidden_, 1};
  cudnn_->check(c.set_tensor(**state_, type, kDims, sizes, strides), "cudnnSetTensorNdDescriptor");
  work_bytes_ = reserve_bytes_ = 0;
  cudnn_->check(
      c.temp_spaces(cudnn_->handle(), *rnn(), backward_ ? cudnn::kTraining : cudnn::kInference,
                    **x_, &work_bytes_, &reserve_bytes_),
      "cudnnGetRNNTempSpaceSizes");
  const size_t of_x = lines(sizeof(T) * places_ * input_);
  const size_t of_y = lines(sizeof(T) * places_ * hidden_);
  rows_.reserve((of_x + of_y) * (backward_ ? 2 : 1));
  x_at_ = rows_.at();
  y_at_ = x_at_ + of_x;
  dx_at_ = y_at_ + of_y;
  dy_at_ = dx_at_ + of_x;
  work_.reserve(work_bytes_);
  reserve_.reserve(reserve_bytes_);
}

template <class T>
void Lstm<T>::pack() const {
  library_->pack(pieces_.as<Piece<T>>(), packs_);
}

template <class T>
void Lstm<T>::gather(const Rows<T>& rows, Address to) const {
  const Rows<T> in = by_index<T>(rows.data, rows.stride, rows.base, at_.row_of, rows.width);
  library_->copy_rows(in, 0, places_, Target{reinterpret_cast<void*>(to), rows.width, 0});
}

template <class T>
void Lstm<T>::spread(Address from, int32_t width, Target to) const {
  const auto* data = reinterpret_cast<const void*>(from);
  library_->copy_rows(by_index<T>(data, width, 0, at_.place_of, width), 0, places_, to);
}

// States before the first vertex are zeros (null), those after the last are of no interest.
template <class T>
void Lstm<T>::run(const Rows<T>& x, Target h) const {
  if (places_ == 0) return;
  gather(x, x_at_);
  cudnn_->check(cudnn_->calls().forward(cudnn_->handle(), *rnn(),
                                        backward_ ? cudnn::kTraining : cudnn::kInference,
                                        at_.lengths, **x_, x_at_, **y_, y_at_, **state_, 0, 0,
                                        **state_, 0, 0, weight_bytes_, weights_.at(), work_bytes_,
                                        work_.at(), reserve_bytes_, reserve_.at()),
                "cudnnRNNForward");
  spread(y_at_, hidden_, h);
}

// Weights at once: their gradient needs what the library has left of that of x.
template <class T>
void Lstm<T>::grad(const Rows<T>& dh, Target dx) const {
  if (places_ == 0) return;
  gather(dh, dy_at_);
  const Cudnn::Entries& c = cudnn_->calls();
  cudnn_->check(
      c.backward_data(cudnn_->handle(), *rnn(), at_.lengths, **y_, y_at_, dy_at_, **x_, dx_at_,
                      **state_, 0, 0, 0, **state_, 0, 0, 0, weight_bytes_, weights_.at(),
                      work_bytes_, work_.at(), reserve_bytes_, reserve_.at()),
      "cudnnRNNBackwardData_v8");
  spread(dx_at_, input_, dx);
  if (unpacks_.empty()) return;
  device_->zero(weight_grads_.at(), weight_bytes_);  // the library adds
  cudnn_->check(c.backward_weights(cudnn_->handle(), *rnn(), cudnn::kAdd, at_.lengths, **x_, x_at_,
                                   **state_, 0, **y_, y_at_, weight_bytes_, weight_grads_.at(),
                                   work_bytes_, work_.at(), reserve_bytes_, reserve_.at()),
                "cudnnRNNBackwardWeights_v8");
}

template <class T>
void Lstm<T>::weight_grad(int32_t param) const {
  if (places_ == 0) return;
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
