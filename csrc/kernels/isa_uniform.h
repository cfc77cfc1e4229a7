// Counter-based uniform numbers: a pure function of their position, so that a backward pass, a
// second thread or another device draws the same. In 32-bit unsigned arithmetic:
//
//   mix(x):  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
//   key = 0
//   for word in (seed low, seed high, step low, step high, stream, row id):
//     key = mix((key ^ word) + 0x9e3779b9)
//   salt = mix(key + 0x85ebca6b)
//   u(column) = (mix(mix(key ^ column) + salt) >> 8) * 2^-24
//
// `stream` is the opcode's immediate, `row id` row_ids[r] (or r), `column` counts across
// outer * inner. float and double give the same numbers.
#pragma once

#include "kernels/isa_vector.h"

namespace cavs::CAVS_ISA {
namespace {

template <class U>
CAVS_INLINE U mix(U x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

CAVS_INLINE uint32_t row_key(uint64_t seed, uint64_t step, uint32_t stream, uint32_t row) {
  const uint32_t words[] = {static_cast<uint32_t>(seed),
                            static_cast<uint32_t>(seed >> 32),
                            static_cast<uint32_t>(step),
                            static_cast<uint32_t>(step >> 32),
                            stream,
                            row};
  uint32_t key = 0;
  for (uint32_t word : words) key = mix((key ^ word) + 0x9e3779b9u);
  return key;
}

// out[i] = u(first + i) for i in [0, n).
template <class T>
CAVS_INLINE void uniform(uint32_t key, uint32_t first, T* out, int64_t n) {
  using U = HashVector<T>;
  using Signed = typename VectorTypes<T>::SmallVector;  // 24 bits fit, and it converts faster
  const uint32_t salt = mix(key + 0x85ebca6bu);
  const U lanes = iota<T, U>();
  const auto draw = [&](int64_t i) {
    const U hash = mix(mix((lanes + (first + static_cast<uint32_t>(i))) ^ key) + salt);
    return __builtin_convertvector((Signed)(hash >> 8), Vector<T>) * T(0x1p-24);
  };
  for_each_vector<T>(
      n, [&](int64_t i) { store(out + i, draw(i)); },
      [&](int64_t i, int c) { store_partial(out + i, draw(i), c); });
}

}  // namespace
}  // namespace cavs::CAVS_ISA
