// The LSTM of the stand-in for cuDNN, by plain loops.

#include <cmath>

#include "cudnn.h"

namespace twin::cudnn {

float tf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (!std::isfinite(value)) return value;
  bits = (bits + 0x1000u) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T operand(T x, bool reduced) {
  return reduced ? static_cast<T>(tf32(static_cast<float>(x))) : x;
}

template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <class T>
void forward(const Work& w) {
  if (!w.check(0)) return;
  poison(w.work, w.work_bytes);
  const int64_t h = w.rnn.hidden, in = w.rnn.input;
  const auto places = w.data.places();
  const T* x = static_cast<const T*>(w.x);
  T* y = static_cast<T*>(w.out);
  T* kept = w.training ? w.kept<T>() : nullptr;
  std::vector<T> cells(w.data.lengths.size() * h), gates(kGates * h);
  for (int t = 0; t < w.data.longest; ++t) {
    for (size_t s = 0; s < w.data.lengths.size(); ++s) {
      const int64_t row = places[t][s];
      if (row < 0) continue;
      const T* before = t == 0 ? nullptr : y + places[t - 1][s] * h;
      for (int g = 0; g < kGates; ++g) {
        const T *wi = w.matrix<T>(w.weights, g), *wh = w.matrix<T>(w.weights, kGates + g);
        for (int64_t j = 0; j < h; ++j) {
          T sum = w.bias<T>(w.weights, g)[j];
          for (int64_t k = 0; k < in; ++k)
            sum += operand(wi[j * in + k], w.reduced()) * operand(x[row * in + k], w.reduced());
          for (int64_t k = 0; before != nullptr && k < h; ++k)
            sum += operand(wh[j * h + k], w.reduced()) * operand(before[k], w.reduced());
          gates[g * h + j] = g == 2 ? std::tanh(sum) : sigmoid(sum);
        }
      }
      for (int64_t j = 0; j < h; ++j) {
        T& c = cells[s * h + j];
        c = gates[h + j] * c + gates[j] * gates[2 * h + j];
        y[row * h + j] = gates[3 * h + j] * std::tanh(c);
        if (kept == nullptr) continue;
        for (int g = 0; g < kGates; ++g) kept[(row * (kGates + 1) + g) * h + j] = gates[g * h + j];
        kept[(row * (kGates + 1) + kGates) * h + j] = c;
      }
    }
  }
  if (w.training) w.leave(1);
}

template <class T>
void backward_data(const Work& w) {
  if (!w.check(1)) return;
  poison(w.work, w.work_bytes);
  const int64_t h = w.rnn.hidden, in = w.rnn.input;
  const auto places = w.data.places();
  const T* dy = static_cast<const T*>(w.dy);
  T *dx = static_cast<T*>(w.out), *kept = w.kept<T>();
  std::vector<T> dh(w.data.lengths.size() * h), dc(dh.size());
  for (int t = w.data.longest - 1; t >= 0; --t) {
    for (size_t s = 0; s < w.data.lengths.size(); ++s) {
      const int64_t row = places[t][s];
      if (row < 0) continue;
      T* gate = kept + row * (kGates + 1) * h;
      const T* c_before = t == 0 ? nullptr : kept + (places[t - 1][s] * (kGates + 1) + kGates) * h;
      for (int64_t j = 0; j < h; ++j) {
        const T i = gate[j], f = gate[h + j], g = gate[2 * h + j], o = gate[3 * h + j];
        const T tanh_c = std::tanh(gate[kGates * h + j]);
        const T d = dh[s * h + j] + dy[row * h + j];
        T& cell = dc[s * h + j];
        cell += d * o * (T(1) - tanh_c * tanh_c);
        gate[3 * h + j] = d * tanh_c * o * (T(1) - o);  // gates are overwritten by their cotangents
        gate[j] = cell * g * i * (T(1) - i);
        gate[2 * h + j] = cell * i * (T(1) - g * g);
        gate[h + j] = c_before == nullptr ? T(0) : cell * c_before[j] * f * (T(1) - f);
        cell *= f;
      }
      const auto back = [&](int64_t n, int first, T* out) {
        for (int64_t k = 0; k < n; ++k) {
          T sum = 0;
          for (int g = 0; g < kGates; ++g) {
            const T* matrix = w.matrix<T>(w.weights, first + g);
            for (int64_t j = 0; j < h; ++j)
              sum +=
                  operand(matrix[j * n + k], w.reduced()) * operand(gate[g * h + j], w.reduced());
          }
          out[k] = sum;
        }
      };
      back(in, 0, dx + row * in);
      back(h, kGates, &dh[s * h]);
    }
  }
  w.leave(2);
}

template <class T>
void backward_weights(const Work& w) {
  if (!w.check(2)) return;
  poison(w.work, w.work_bytes);
  const int64_t h = w.rnn.hidden, in = w.rnn.input;
  const auto places = w.data.places();
  const T *x = static_cast<const T*>(w.x), *y = static_cast<const T*>(w.y), *kept = w.kept<T>();
  for (int g = 0; g < kGates; ++g) {
    T* wi = const_cast<T*>(w.matrix<T>(w.out, g));
    T* wh = const_cast<T*>(w.matrix<T>(w.out, kGates + g));
    T* bias = const_cast<T*>(w.bias<T>(w.out, g));
    for (int t = 0; t < w.data.longest; ++t)
      for (size_t s = 0; s < w.data.lengths.size(); ++s) {
        const int64_t row = places[t][s];
        if (row < 0) continue;
        for (int64_t j = 0; j < h; ++j) {
          const T d = kept[(row * (kGates + 1) + g) * h + j], left = operand(d, w.reduced());
          bias[j] += d;
          for (int64_t k = 0; k < in; ++k)
            wi[j * in + k] += left * operand(x[row * in + k], w.reduced());
          for (int64_t k = 0; t > 0 && k < h; ++k)
            wh[j * h + k] += left * operand(y[places[t - 1][s] * h + k], w.reduced());
        }
      }
  }
}

template void forward<float>(const Work&);
template void forward<double>(const Work&);
template void backward_data<float>(const Work&);
template void backward_data<double>(const Work&);
template void backward_weights<float>(const Work&);
template void backward_weights<double>(const Work&);

}  // namespace twin::cudnn
