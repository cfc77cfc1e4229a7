// The entry points of cuDNN that the engine uses, with the signatures of cudnn_ops.h and
// cudnn_adv.h.

#include "cudnn.h"

namespace twin::cudnn {

const char* word(int status) {
  switch (status) {
    case kOk:
      return "CUDNN_STATUS_SUCCESS";
    case kNotReadyDnn:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case kBadParam:
      return "CUDNN_STATUS_BAD_PARAM";
    case kTooSmall:
      return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case kRefused:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4000:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    case kExecutionFailed:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_UNKNOWN_STATUS";
  }
}

// The status of an entry point that can fail: the one that a test has chosen does.
template <class Body>
int call(Body body) {
  twin::Device& d = device();
  const std::lock_guard<std::recursive_mutex> guard(d.lock);
  if (d.settings.device_keeps_up != 0) d.queue.finish_all();
  if (!d.initialized || twin::current() == nullptr || d.fault.code != 0) return kNotReadyDnn;
  if (++d.cudnn_calls == d.settings.cudnn_error_at) return static_cast<int>(d.settings.cudnn_error);
  return body(d);
}

bool readable(twin::Device& d, const void* at, size_t bytes, size_t element) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  return address % std::max<size_t>(element, 16) == 0 && d.memory.device(address, bytes);
}

// Checks of all three calls; then one is queued.
struct Call {
  const char* name;
  const Handle* handle;
  const Rnn* rnn;
  const Data *x_data, *y_data;
  const Tensor *h, *c;  // null if not a parameter of the call
  const void* states[4];
  size_t weight_bytes;
  Work work;
  size_t reserve_size;
};

int start(twin::Device& d, Call& o, void (*narrow)(const Work&), void (*wide)(const Work&)) {
  if (o.handle == nullptr || o.rnn == nullptr || o.x_data == nullptr || o.y_data == nullptr)
    return kBadParam;
  const Rnn& rnn = *o.rnn;
  const Data &x = *o.x_data, &y = *o.y_data;
  if (rnn.type < 0 || x.type != rnn.type || y.type != rnn.type || x.lengths != y.lengths ||
      x.layout != y.layout || x.longest != y.longest || x.vector != rnn.input ||
      y.vector != rnn.hidden)
    return kBadParam;
  // Padded sequences require an LSTM with padding enabled.
  if ((x.layout == kSequenceUnpacked) != rnn.padded) return kBadParam;
  if (x.layout == kSequencePacked && !std::is_sorted(x.lengths.rbegin(), x.lengths.rend()))
    return kBadParam;
  const auto batch = static_cast<int>(x.lengths.size());
  const int hidden = static_cast<int>(rnn.hidden);
  for (const Tensor* t : {o.h, o.c}) {
    if (t == nullptr) continue;
    const int size[] = {1, batch, hidden}, stride[] = {batch * hidden, hidden, 1};
    if (t->type != rnn.type || t->dims != 3 || std::memcmp(t->size, size, sizeof size) != 0 ||
        std::memcmp(t->stride, stride, sizeof stride) != 0)
      return kBadParam;
  }
  for (const void* state : o.states)
    if (state != nullptr) return kRefused;  // initial states must be zero, final states unused
  Work& w = o.work;
  w.rnn = rnn;
  w.data = x;
  const size_t element = rnn.element();
  const size_t of_x = x.rows() * rnn.input * element, of_y = y.rows() * rnn.hidden * element;
  const std::pair<const void*, size_t> rows[] = {{w.x, of_x}, {w.y, of_y}, {w.dy, of_y}};
  for (const auto& [at, bytes] : rows)
    if (at != nullptr && !readable(d, at, bytes, element)) return kBadParam;
  if (!readable(d, w.lengths, sizeof(int32_t) * batch, 4)) return kBadParam;
  if (o.weight_bytes < rnn.weight_bytes() || w.work_bytes < kHead ||
      (w.training && o.reserve_size < reserve_bytes(rnn, x)))
    return kTooSmall;
  if (!readable(d, w.work, w.work_bytes, element) ||
      (w.training && !readable(d, w.reserve, o.reserve_size, element)))
    return kBadParam;
  Stream* const stream = d.queue.find(o.handle->stream);
  if (stream == nullptr) return kBadParam;
  if (usable(d, stream) != twin::kSuccess) return kExecutionFailed;
  Record record = {.kind = "product", .name = o.name};
  record.arguments =
      std::to_string(x.rows()) + "," + std::to_string(batch) + "," + std::to_string(x.layout);
  record.to = reinterpret_cast<uintptr_t>(w.out);
  record.from = reinterpret_cast<uintptr_t>(w.x);
  const auto run = rnn.type == kDouble ? wide : narrow;
  struct Memory {
    const void* at;
    size_t bytes;
    bool write;
  };
  const std::vector<Memory> memory = {
      {w.lengths, sizeof(int32_t) * batch, false},
      {w.x, of_x, w.out == w.x},
      {w.y, of_y, w.out == w.y},
      {w.dy, of_y, false},
      {w.weights, o.weight_bytes, false},
      {w.weights == nullptr ? w.out : nullptr, o.weight_bytes, true},  // gradients of weights
      {w.work, w.work_bytes, true},
      {w.reserve, o.reserve_size, true},
  };
  d.add(stream, std::move(record), [&d, run, w, memory] {
    for (const auto& [at, bytes, write] : memory)
      if (at != nullptr && !d.touch(at, bytes, write)) return;
    run(w);
  });
  return kOk;
}

template <class D>
int create(D** result) {
  return call([&](twin::Device&) {
    if (result == nullptr) return kBadParam;
    *result = new D;
    return kOk;
  });
}

}  // namespace twin::cudnn

using namespace twin;

TWIN_API size_t cudnnGetVersion() { return static_cast<size_t>(device().settings.cudnn_version); }
TWIN_API const char* cudnnGetErrorString(int status) { return cudnn::word(status); }

TWIN_API int cudnnCreate(cudnn::Handle** handle) { return cudnn::create(handle); }
TWIN_API int cudnnDestroy(cudnn::Handle* handle) {
  delete handle;
  return cudnn::kOk;
}
TWIN_API int cudnnSetStream(cudnn::Handle* handle, CUstream stream) {
  return cudnn::call([&](Device& d) {
    if (handle == nullptr || d.queue.find(stream) == nullptr) return cudnn::kBadParam;
    handle->stream = stream;
    return cudnn::kOk;
  });
}

TWIN_API int cudnnCreateTensorDescriptor(cudnn::Tensor** t) { return cudnn::create(t); }
TWIN_API int cudnnDestroyTensorDescriptor(cudnn::Tensor* t) {
  delete t;
  return cudnn::kOk;
}
TWIN_API int cudnnSetTensorNdDescriptor(cudnn::Tensor* t, int type, int dims, const int* size,
                                        const int* stride) {
  return cudnn::call([&](Device&) {
    if (t == nullptr || size == nullptr || stride == nullptr || dims < 3 || dims > 8)
      return cudnn::kBadParam;
    t->type = type;
    t->dims = dims;
    std::copy_n(size, dims, t->size);
    std::copy_n(stride, dims, t->stride);
    return cudnn::kOk;
  });
}
TWIN_API int cudnnGetTensorNdDescriptor(const cudnn::Tensor* t, int wanted, int* type, int* dims,
                                        int* size, int* stride) {
  return cudnn::call([&](Device&) {
    if (t == nullptr || type == nullptr || dims == nullptr || size == nullptr || stride == nullptr)
      return cudnn::kBadParam;
    *type = t->type;
    *dims = t->dims;
    std::copy_n(t->size, std::min(wanted, t->dims), size);
    std::copy_n(t->stride, std::min(wanted, t->dims), stride);
    return cudnn::kOk;
  });
}

TWIN_API int cudnnCreateDropoutDescriptor(cudnn::Dropout** d) { return cudnn::create(d); }
TWIN_API int cudnnDestroyDropoutDescriptor(cudnn::Dropout* d) {
  delete d;
  return cudnn::kOk;
}
TWIN_API int cudnnSetDropoutDescriptor(cudnn::Dropout* dropout, const cudnn::Handle* handle,
                                       float share, const void*, size_t, unsigned long long) {
  return cudnn::call([&](Device&) {
    if (dropout == nullptr || handle == nullptr) return cudnn::kBadParam;
    if (share != 0) return cudnn::kRefused;
    dropout->set = true;
    return cudnn::kOk;
  });
}

TWIN_API int cudnnCreateRNNDescriptor(cudnn::Rnn** rnn) { return cudnn::create(rnn); }
TWIN_API int cudnnDestroyRNNDescriptor(cudnn::Rnn* rnn) {
  delete rnn;
  return cudnn::kOk;
}
TWIN_API int cudnnSetRNNDescriptor_v8(cudnn::Rnn* rnn, int algorithm, int mode, int bias,
                                      int direction, int input_mode, int type, int precision,
                                      int math, int32_t input, int32_t hidden, int32_t projection,
                                      int32_t layers, const cudnn::Dropout* dropout,
                                      uint32_t flags) {
  return cudnn::call([&](Device&) {
    if (rnn == nullptr || input < 1 || hidden < 1 || projection < 1 || layers < 1 || flags > 1)
      return cudnn::kBadParam;
    // Only CUDNN_RNN_ALGO_STANDARD, CUDNN_LSTM, CUDNN_RNN_SINGLE_INP_BIAS, CUDNN_UNIDIRECTIONAL and
    // CUDNN_LINEAR_INPUT are supported.
    if (algorithm != 0 || mode != 2 || bias != 1 || direction != 0 || input_mode != 0 ||
        projection != hidden || layers != 1 || (dropout != nullptr && !dropout->set))
      return cudnn::kRefused;
    if ((type != cudnn::kFloat && type != cudnn::kDouble) || precision != type ||
        (math != cudnn::kDefaultMath && math != cudnn::kFma))
      return cudnn::kRefused;
    *rnn = {type, math, input, hidden, flags == 1};
    return cudnn::kOk;
  });
}

TWIN_API int cudnnCreateRNNDataDescriptor(cudnn::Data** data) { return cudnn::create(data); }
TWIN_API int cudnnDestroyRNNDataDescriptor(cudnn::Data* data) {
  delete data;
  return cudnn::kOk;
}
TWIN_API int cudnnSetRNNDataDescriptor(cudnn::Data* data, int type, int layout, int longest,
                                       int batch, int vector, const int* lengths, void* fill) {
  return cudnn::call([&](Device&) {
    if (data == nullptr || lengths == nullptr || longest < 1 || batch < 1 || vector < 1)
      return cudnn::kBadParam;
    if (layout != cudnn::kSequenceUnpacked && layout != cudnn::kSequencePacked)
      return cudnn::kRefused;
    if (fill != nullptr) return cudnn::kRefused;
    for (int i = 0; i < batch; ++i)
      if (lengths[i] < 1 || lengths[i] > longest) return cudnn::kBadParam;
    *data = {type, layout, longest, vector, std::vector<int>(lengths, lengths + batch)};
    return cudnn::kOk;
  });
}

TWIN_API int cudnnGetRNNWeightSpaceSize(const cudnn::Handle* handle, const cudnn::Rnn* rnn,
                                        size_t* bytes) {
  return cudnn::call([&](Device&) {
    if (handle == nullptr || rnn == nullptr || rnn->type < 0 || bytes == nullptr)
      return cudnn::kBadParam;
    *bytes = rnn->weight_bytes();
    return cudnn::kOk;
  });
}
TWIN_API int cudnnGetRNNWeightParams(const cudnn::Handle* handle, const cudnn::Rnn* rnn,
                                     int32_t layer, size_t bytes, char* space, int32_t id,
                                     cudnn::Tensor* matrix, void** matrix_at, cudnn::Tensor* bias,
                                     void** bias_at) {
  return cudnn::call([&](Device&) {
    if (handle == nullptr || rnn == nullptr || rnn->type < 0 || layer != 0 || matrix == nullptr ||
        bias == nullptr || matrix_at == nullptr || bias_at == nullptr || id < 0 ||
        id >= 2 * cudnn::kGates || bytes < rnn->weight_bytes())
      return cudnn::kBadParam;
    const int h = static_cast<int>(rnn->hidden);
    const int columns = id < cudnn::kGates ? static_cast<int>(rnn->input) : h;
    *matrix = {rnn->type, 3, {1, h, columns}, {h * columns, columns, 1}};
    *matrix_at = space + rnn->matrix_at(id);
    *bias = {};  // recurrent products have none
    *bias_at = nullptr;
    if (id >= cudnn::kGates) return cudnn::kOk;
    *bias = {rnn->type, 3, {1, h, 1}, {h, 1, 1}};
    *bias_at = space + rnn->bias_at(id);
    return cudnn::kOk;
  });
}
TWIN_API int cudnnGetRNNTempSpaceSizes(const cudnn::Handle* handle, const cudnn::Rnn* rnn, int mode,
                                       const cudnn::Data* x, size_t* work, size_t* reserve) {
  return cudnn::call([&](Device&) {
    if (handle == nullptr || rnn == nullptr || x == nullptr || work == nullptr ||
        reserve == nullptr || mode < 0 || mode > 1 || x->vector != rnn->input)
      return cudnn::kBadParam;
    if ((x->layout == cudnn::kSequenceUnpacked) != rnn->padded) return cudnn::kBadParam;
    *work = cudnn::kHead;
    *reserve = mode == 1 ? cudnn::reserve_bytes(*rnn, *x) : 0;
    return cudnn::kOk;
  });
}

TWIN_API int cudnnRNNForward(const cudnn::Handle* handle, const cudnn::Rnn* rnn, int mode,
                             const int32_t* lengths, const cudnn::Data* x_data, const void* x,
                             const cudnn::Data* y_data, void* y, const cudnn::Tensor* h,
                             const void* hx, void* hy, const cudnn::Tensor* c, const void* cx,
                             void* cy, size_t weight_bytes, const void* weights, size_t work_bytes,
                             void* work, size_t reserve_size, void* reserve) {
  return cudnn::call([&](Device& d) {
    if (x == nullptr || y == nullptr || h == nullptr || c == nullptr || mode < 0 || mode > 1 ||
        !cudnn::readable(d, weights, weight_bytes, 4))
      return static_cast<int>(cudnn::kBadParam);
    cudnn::Call o{"cudnnRNNForward", handle,       rnn, x_data,      y_data, h, c,
                  {hx, hy, cx, cy},  weight_bytes, {},  reserve_size};
    o.work.lengths = lengths;
    o.work.x = x;
    o.work.y = o.work.out = y;
    o.work.dy = nullptr;
    o.work.weights = weights;
    o.work.work = work;
    o.work.work_bytes = work_bytes;
    o.work.training = mode == 1;
    o.work.reserve = mode == 1 ? reserve : nullptr;
    return cudnn::start(d, o, cudnn::forward<float>, cudnn::forward<double>);
  });
}

TWIN_API int cudnnRNNBackwardData_v8(const cudnn::Handle* handle, const cudnn::Rnn* rnn,
                                     const int32_t* lengths, const cudnn::Data* y_data,
                                     const void* y, const void* dy, const cudnn::Data* x_data,
                                     void* dx, const cudnn::Tensor* h, const void* hx,
                                     const void* dhy, void* dhx, const cudnn::Tensor* c,
                                     const void* cx, const void* dcy, void* dcx,
                                     size_t weight_bytes, const void* weights, size_t work_bytes,
                                     void* work, size_t reserve_size, void* reserve) {
  return cudnn::call([&](Device& d) {
    if (y == nullptr || dy == nullptr || dx == nullptr || h == nullptr || c == nullptr ||
        hx != nullptr || cx != nullptr || !cudnn::readable(d, weights, weight_bytes, 4))
      return static_cast<int>(cudnn::kBadParam);
    cudnn::Call o{"cudnnRNNBackwardData_v8", handle,       rnn, x_data,      y_data, h, c,
                  {dhy, dhx, dcy, dcx},      weight_bytes, {},  reserve_size};
    o.work.lengths = lengths;
    o.work.x = dx;
    o.work.y = y;
    o.work.dy = dy;
    o.work.weights = weights;
    o.work.out = dx;
    o.work.work = work;
    o.work.work_bytes = work_bytes;
    o.work.reserve = reserve;
    return cudnn::start(d, o, cudnn::backward_data<float>, cudnn::backward_data<double>);
  });
}

TWIN_API int cudnnRNNBackwardWeights_v8(const cudnn::Handle* handle, const cudnn::Rnn* rnn,
                                        int mode, const int32_t* lengths, const cudnn::Data* x_data,
                                        const void* x, const cudnn::Tensor* h, const void* hx,
                                        const cudnn::Data* y_data, const void* y,
                                        size_t weight_bytes, void* grads, size_t work_bytes,
                                        void* work, size_t reserve_size, void* reserve) {
  return cudnn::call([&](Device& d) {
    if (x == nullptr || y == nullptr || h == nullptr || !cudnn::readable(d, grads, weight_bytes, 4))
      return static_cast<int>(cudnn::kBadParam);
    if (mode != 0) return static_cast<int>(cudnn::kRefused);  // only CUDNN_WGRAD_MODE_ADD
    cudnn::Call o{
        "cudnnRNNBackwardWeights_v8",    handle,       rnn, x_data,      y_data, h, nullptr,
        {hx, nullptr, nullptr, nullptr}, weight_bytes, {},  reserve_size};
    o.work.lengths = lengths;
    o.work.x = x;
    o.work.y = y;
    o.work.dy = nullptr;
    o.work.weights = nullptr;
    o.work.out = grads;
    o.work.work = work;
    o.work.work_bytes = work_bytes;
    o.work.reserve = reserve;
    return cudnn::start(d, o, cudnn::backward_weights<float>, cudnn::backward_weights<double>);
  });
}
