// Updates of parameters, states and rows of tables: how a block walks its chunks.
#pragma once

#include "rows.cuh"

namespace {

// Update one vector, at element `at` of the parameter: f(gradient, parameter, states) changes the
// last two.
template <int N, int States, class F>
__device__ void update_vector(const UpdateChunk& s, const real* grad, long long at, F f) {
  const Lanes<N> g = take<N>(grad);
  Lanes<N> p = take<N>(s.param + at), states[States + 1];
#pragma unroll
  for (int k = 0; k < States; ++k) states[k] = take<N>(s.states[k] + at);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    real of_element[States + 1];
#pragma unroll
    for (int k = 0; k < States; ++k) of_element[k] = states[k].v[i];
    f(g.v[i], p.v[i], of_element);
#pragma unroll
    for (int k = 0; k < States; ++k) states[k].v[i] = of_element[k];
  }
  store(s.param + at, p);
#pragma unroll
  for (int k = 0; k < States; ++k) store(s.states[k] + at, states[k]);
}

// Update columns [0, width) of every row with adjacent threads; width is a multiple of N.
template <int N, int States, class F>
__device__ void update_rows(const UpdateChunk& s, long long first, long long count, long long width,
                            F f) {
  const int lanes = lanes_of_row(width / N, kThreads), lane = threadIdx.x % lanes;
  for (long long i = threadIdx.x / lanes; i < count; i += kThreads / lanes) {
    const real* grad = s.grad + i * s.width + first;
    const long long at = s.offset + (s.rows != nullptr ? s.rows[i] : i) * s.stride + first;
    for (long long j = static_cast<long long>(lane) * N; j < width; j += lanes * N) {
      update_vector<N, States>(s, grad + j, at + j, f);
    }
  }
}

template <int States, class F>
__device__ void update_chunk(const UpdateChunk& s, F f) {
  bool wide = aligned(s.grad) && aligned(s.param + s.offset);
#pragma unroll
  for (int k = 0; k < States; ++k) wide = wide && aligned(s.states[k] + s.offset);
  if (s.rows == nullptr && s.stride == s.width) {  // as one row
    const long long n = s.count * s.width, whole = wide ? n / kWide * kWide : 0;
    update_rows<kWide, States>(s, 0, 1, whole, f);
    update_rows<1, States>(s, whole, 1, n - whole, f);
  } else if (wide && s.width % kWide == 0 && s.stride % kWide == 0) {
    update_rows<kWide, States>(s, 0, s.count, s.width, f);
  } else {
    update_rows<1, States>(s, 0, s.count, s.width, f);
  }
}

template <int States, class F>
__device__ void update_each(const UpdateChunk* chunks, int count, F f) {
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const UpdateChunk s = chunks[i];  // a copy, which cannot alias the parameters
    update_chunk<States>(s, f);
  }
}

}  // namespace
