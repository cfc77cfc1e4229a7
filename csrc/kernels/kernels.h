// The kernel tables: everything that touches numbers in a hot loop, compiled once per instruction
// set. Pointers, strides and row numbers only; no allocation, no threads, no STL.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/map_operations.h"

namespace cavs {

// How row r of an iteration finds its values in a buffer.
enum class RowMap : uint8_t {
  kSelf,        // data + (r - base) * stride
  kOne,         // data: one row for all r
  kIndex,       // i = index[r]; i < 0 reads zeros, else data + (i - base) * stride
  kSegmentSum,  // sum over j in [offsets[r], offsets[r+1]) of row (index ? index[j] : j) - base;
                // a negative index adds nothing, an empty segment is zero
};

// An operand of a kernel. `data` includes the column offset; strides count elements; `base` is the
// global number of the buffer's first row.
template <class T>
struct Source {
  const T* data = nullptr;
  int64_t stride = 0;
  int64_t base = 0;
  const int32_t* index = nullptr;
  const int32_t* offsets = nullptr;
  RowMap map = RowMap::kSelf;
  int32_t width = 0;  // columns read
};

// Rows [begin, end) of both operands of a product of transposed rows; sources are side by side.
template <class T>
struct RowPairs {
  const Source<T>* a;
  int32_t num_a;
  const Source<T>* b;
  int32_t num_b;
  int64_t begin, end;
};

// One operation of a fused elementwise kernel. Registers hold one block of columns.
struct MapOp {
  MapOpcode code;
  int16_t dst, a, b, c;  // registers; registers [0, loads) are the loaded operands, in order
  double imm;
};

// A map kernel iterates rows x outer x inner; a block is `inner` columns (cut at kMapBlock).
// A load reads row_pointer + o * outer_stride (+ column unless `scalar`, which is broadcast).
template <class T>
struct MapLoad {
  Source<T> source;
  int32_t outer_stride;
  bool scalar;
  bool by_item = false;  // indexed by items of MapKernel::segments, not by rows
};

enum class StoreMode : uint8_t {
  kWrite,  // data[o * outer_stride + column] = value
  kSum,    // data[o * outer_stride] = sum of the block row over inner
  kMax,    // data[o * outer_stride] = maximum over inner
};

template <class T>
struct MapStore {
  T* data;
  int64_t stride, base;
  int32_t outer_stride;
  StoreMode mode;
  int16_t reg;
};

template <class T>
struct MapKernel {
  const MapLoad<T>* loads;
  const MapOp* ops;
  const MapStore<T>* stores;
  int32_t num_loads, num_ops, num_stores, num_registers;
  int32_t outer, inner;
  uint64_t seed, step;     // for kUniform
  const int32_t* row_ids;  // for kUniform: the caller's number of row r; null: r
  // If set, row r stores the sum of its results over j in [segments[r], segments[r + 1]), in
  // ascending order; then all stores are kWrite and there is no kUniform.
  const int32_t* segments;
};

constexpr int32_t kMapBlock = 256;

// Hyper-parameters of one optimiser update; see update() below.
enum class OptimizerRule : uint8_t { kSgd, kMomentum, kAdagrad, kAdam, kAdamW };
struct OptimizerStep {
  OptimizerRule rule;
  bool nesterov;
  double lr, momentum, beta1, beta2, eps, weight_decay;
  double grad_scale;    // multiplies the gradient first (clipping by global norm)
  double bias1, bias2;  // 1 - beta^t
};

// Number of rows to compute together: a multiple of `unit`, at least `fewest` (with fewer, weights
// are read too often), at most twice as many.
struct ChunkRows {
  int32_t unit = 12, fewest = 48;
};

// How products of float32 are computed: exactly, from 16-bit integers ("int16"), or by bfloat16
// instructions, from numbers split into two bfloat16 ("bfloat16x3") or rounded to one ("bfloat16").
enum class Products : uint8_t { kExact, kIntegers, kSplit, kRounded };

// A result of at most so many columns of a product of transposed rows is computed as its transpose,
// with panels of the rows of the result, if all columns are wanted.
constexpr int32_t kNarrowResult = 12;

// Part of a matrix, at (k0, n0) of it: element (i, j) at data[i * row_stride + j * col_stride].
template <class T>
struct WeightPart {
  const T* data;
  int64_t row_stride, col_stride, rows, cols, k0, n0;
};

template <class T>
struct Kernels {
  const char* name;  // "avx512", ...
  Products products;
  int32_t panel;   // columns of a packed panel (a multiple of 16)
  int32_t depth;   // rows stored together in a packed panel, see pack
  ChunkRows rows;  // rows of A for which products are most efficient

  // A packed weight of K x N: ceil(N / panel) panels, each of K rows of `panel` columns, zero
  // padded to a multiple of `depth` rows, 64-byte aligned; the order of the rows within a unit of
  // `depth` depends on the table. packed_size in elements.
  size_t (*packed_size)(int64_t k, int64_t n);
  // Pack panels [p0, p1) of a K x N matrix composed of parts that do not overlap. Elements that no
  // part covers must have been zeroed before.
  void (*pack)(const WeightPart<T>* parts, int32_t count, int64_t k, int64_t n, int64_t p0,
               int64_t p1, T* packed);
  // c[r] (+)= [sources side by side](r) @ W for r in [r0, r1), panels [p0, p1) only. Row r of c is
  // at c + (r - c_base) * c_stride. `scratch` holds matmul_scratch(k) elements. W may be a window
  // of a packed matrix, whose panels have packed_k rows, that begins at a panel and a unit of rows:
  // `packed` points to its first element.
  void (*matmul)(const Source<T>* a, int32_t num_sources, int64_t r0, int64_t r1, const T* packed,
                 int64_t packed_k, int64_t k, int64_t n, int64_t p0, int64_t p1, T* c,
                 int64_t c_stride, int64_t c_base, bool accumulate, T* scratch);
  size_t (*matmul_scratch)(int64_t k);
  // out[K, N] (+)= sum of A(r)^T B(r) over the rows of `parts`, one below the other, for columns
  // [n0, n1) of B only; n0 is a multiple of panel. out is row-major with out_stride. Rows are added
  // in this order, in blocks that depend on their number and the whole shape of the result: A may
  // be some columns of a matrix with `whole_k` columns. `scratch` holds matmul_tn_scratch(whole_k,
  // N) elements.
  void (*matmul_tn)(const RowPairs<T>* parts, int32_t count, int64_t k, int64_t whole_k, int64_t n,
                    int64_t n0, int64_t n1, T* out, int64_t out_stride, bool accumulate,
                    T* scratch);
  size_t (*matmul_tn_scratch)(int64_t k, int64_t n);

  void (*map)(const MapKernel<T>& kernel, int64_t r0, int64_t r1, T* scratch);
  size_t (*map_scratch)(const MapKernel<T>& kernel);

  // out (+)= row r of `source` for every r in [r0, r1): column sums, `source.width` wide.
  void (*sum_rows)(const Source<T>& source, int64_t r0, int64_t r1, T* out, bool accumulate);
  // out[r] = maximum over the segment of row r of `source` (kSegmentSum read as a maximum), zeros
  // if the segment is empty.
  void (*segment_max)(const Source<T>& source, int64_t r0, int64_t r1, T* out, int64_t stride,
                      int64_t base);
  // The product in place of the maximum, ones if the segment is empty.
  void (*segment_product)(const Source<T>& source, int64_t r0, int64_t r1, T* out, int64_t stride,
                          int64_t base);
  // Cross entropy of logits[r] with label[r] (negative: loss 0, gradient 0 * slope[r]). loss[r] =
  // logsumexp - logit[label]; grad[r] = (softmax - onehot) * slope[r], 1 if `slope` is null. Either
  // output may be null.
  void (*cross_entropy)(const Source<T>& logits, const Source<T>* slope, const int32_t* label,
                        int64_t r0, int64_t r1, T* loss, int64_t loss_stride, int64_t loss_base,
                        T* grad, int64_t grad_stride, int64_t grad_base);
  // out[r] = row r of source (contiguous copies, conversions of layout, segment sums).
  void (*copy_rows)(const Source<T>& source, int64_t r0, int64_t r1, T* out, int64_t stride,
                    int64_t base);
  // One optimiser update of n elements in place; unused states are null.
  void (*update)(const OptimizerStep& step, int64_t n, const T* grad, T* param, T* state1,
                 T* state2);
  double (*sum_of_squares)(const T* x, int64_t n);
};

// The table for the best instruction set of this machine, or the one that CAVS_ISA names (base |
// avx2 | avx512). Chosen once.
template <class T>
const Kernels<T>& kernels();

// The table with such products, if instructions of this machine make them faster; products of
// float64 are always exact.
template <class T>
const Kernels<T>& kernels(Products products);

}  // namespace cavs
