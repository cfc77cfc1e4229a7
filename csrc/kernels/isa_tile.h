// The register tile of both products: R rows by V vectors of the output, all in registers while k
// runs. A is read through row pointers or from an interleaved copy; B is a packed panel.
#pragma once

#include <type_traits>

#include "kernels/isa_source.h"

namespace cavs::CAVS_ISA {
namespace {

// Accumulators, one row of B and one broadcast must fit the register file: 32 registers with
// AVX-512, 16 without.
constexpr int kTileRows = 6;
constexpr int kTileVectors = CAVS_VECTOR_BYTES == 64 ? 4 : 2;
template <class T>
constexpr int kPanel = kTileVectors * kLanes<T>;

// Element (i, k) of A is at row[i][k] ...
template <class T>
struct RowsOfA {
  const T* row[kTileRows];
  CAVS_INLINE T at(int i, int64_t k) const { return row[i][k]; }
};
// ... or at data[k * stride + i].
template <class T>
struct ColumnsOfA {
  const T* data;
  int64_t stride;
  CAVS_INLINE T at(int i, int64_t k) const { return data[k * stride + i]; }
};

// ... or at row[k][column + i].
template <class T>
struct ColumnsOfRows {
  const T* const* row;
  int64_t column;
  CAVS_INLINE T at(int i, int64_t k) const { return row[k][column + i]; }
};

// Addresses that a tile prefetches into L2 for later tiles: at each two steps of k four lines at
// `data`, which then advances by `step` bytes. NoPrefetch fetches nothing at no cost.
struct Ahead {
  const char* data;
  int64_t step;
};
struct NoPrefetch {};
constexpr int64_t kLineBytes = 64;  // processors fetch the other line of a pair as well

// A tile of so few rows is limited by its loads and the loop branch, not by its multiply-adds.
constexpr int kFewRows = 3;

// Keep a value that several operations read in a register: with AVX-512 the compiler would fold the
// load into each of them.
template <class T>
CAVS_INLINE void in_register([[maybe_unused]] T& x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#endif
}

// c (R x cols) (+)= A (R x depth) B, row k of B at b + k * kPanel, in the next panel `next`
// elements further; (V - 1) * lanes < cols <= V * lanes.
template <class T, int R, int V, class A, class Fetch>
__attribute__((noinline)) void tile(const A& a, int64_t depth, const T* b, T* c, int64_t c_stride,
                                    int cols, bool accumulate, [[maybe_unused]] Fetch fetch,
                                    [[maybe_unused]] int64_t next = 0) {
  Vector<T> acc[R][V];
#pragma GCC unroll 32
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[i][v] = Vector<T>{};
  A rows = a;  // a local copy: its pointers stay in registers
  // C is touched once, at the end: its lines are fetched while k runs.
#pragma GCC unroll 32
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) __builtin_prefetch(c + i * c_stride + v * kLanes<T>, 1);
  const auto step = [&](int64_t k) __attribute__((always_inline)) {
    Vector<T> bv[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      bv[v] = load(b + v / kTileVectors * next + v % kTileVectors * kLanes<T>);
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) {
      Vector<T> x = broadcast(rows.at(i, k));
      if constexpr (R <= kFewRows) in_register(x);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[i][v] += x * bv[v];
    }
    b += kPanel<T>;
  };
  if constexpr (R <= kFewRows) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k) step(k);
  } else if constexpr (std::is_same_v<Fetch, Ahead>) {
    int64_t k = 0;
    for (; k + 2 <= depth; k += 2, fetch.data += fetch.step) {
      __builtin_prefetch(fetch.data, 0, 2);
      step(k);
      __builtin_prefetch(fetch.data + 2 * kLineBytes, 0, 2);
      step(k + 1);
    }
    if (k < depth) step(k);
  } else {
    for (int64_t k = 0; k < depth; ++k) step(k);
  }
  const int tail = cols - (V - 1) * kLanes<T>;
#pragma GCC unroll 32
  for (int i = 0; i < R; ++i) {
    T* out = c + i * c_stride;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      T* p = out + v * kLanes<T>;
      if (v < V - 1 || tail == kLanes<T>) {
        if (accumulate) acc[i][v] += load(p);
        store(p, acc[i][v]);
      } else {
        if (accumulate) acc[i][v] += load_partial(p, tail);
        store_partial(p, acc[i][v], tail);
      }
    }
  }
}

template <class T, int R, class A, class Fetch>
CAVS_INLINE void tile_rows(const A& a, int64_t depth, const T* b, T* c, int64_t c_stride,
                           int64_t cols, bool accumulate, Fetch fetch) {
  const int n = static_cast<int>(cols);
  if constexpr (kTileVectors == 4) {
    if (n > 3 * kLanes<T>)
      return tile<T, R, kTileVectors>(a, depth, b, c, c_stride, n, accumulate, fetch);
    if (n > 2 * kLanes<T>) return tile<T, R, 3>(a, depth, b, c, c_stride, n, accumulate, fetch);
  }
  if (n > kLanes<T>) return tile<T, R, 2>(a, depth, b, c, c_stride, n, accumulate, fetch);
  tile<T, R, 1>(a, depth, b, c, c_stride, n, accumulate, fetch);
}

// Number of panels that a tile of so few rows takes at once: sums of fewer vectors would wait for
// each other, as the latency of a multiply-add is some four times its throughput.
constexpr int kSums = 8;
CAVS_INLINE int64_t panels_together(int64_t rows) {
  return larger(kSums / (rows * kTileVectors), 1);
}
template <class T, class A>
void run_together(int64_t rows, const A& a, int64_t depth, const T* b, int64_t next, T* c,
                  int64_t c_stride, int64_t cols, bool accumulate) {
  const int n = static_cast<int>(cols);
  if (rows == 1)
    return tile<T, 1, kSums>(a, depth, b, c, c_stride, n, accumulate, NoPrefetch{}, next);
  tile<T, 2, kSums / 2>(a, depth, b, c, c_stride, n, accumulate, NoPrefetch{}, next);
}

template <class T, class A, class Fetch = NoPrefetch>
void run_tile(int64_t rows, const A& a, int64_t depth, const T* b, T* c, int64_t c_stride,
              int64_t cols, bool accumulate, Fetch fetch = {}) {
  switch (rows) {
    case 1:
      return tile_rows<T, 1>(a, depth, b, c, c_stride, cols, accumulate, fetch);
    case 2:
      return tile_rows<T, 2>(a, depth, b, c, c_stride, cols, accumulate, fetch);
    case 3:
      return tile_rows<T, 3>(a, depth, b, c, c_stride, cols, accumulate, fetch);
    case 4:
      return tile_rows<T, 4>(a, depth, b, c, c_stride, cols, accumulate, fetch);
    case 5:
      return tile_rows<T, 5>(a, depth, b, c, c_stride, cols, accumulate, fetch);
    default:
      return tile_rows<T, 6>(a, depth, b, c, c_stride, cols, accumulate, fetch);
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
