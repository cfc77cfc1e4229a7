// Rows of a Source: most row maps are a pointer, segments of several rows are summed. Also the rows
// of a block of operands that are stacked one below the other.
#pragma once

#include "kernels/isa_vector.h"

namespace cavs::CAVS_ISA {
namespace {

// Row r of a map other than segments; null for a row of zeros.
template <class T>
CAVS_INLINE const T* plain_row(const Source<T>& s, int64_t r) {
  if (s.map == RowMap::kSelf) return s.data + (r - s.base) * s.stride;
  if (s.map == RowMap::kOne) return s.data;
  const int32_t i = s.index[r];
  return i < 0 ? nullptr : s.data + (i - s.base) * s.stride;
}

// Prefetch row r if it is found by index, which no processor can predict.
template <class T>
CAVS_INLINE void fetch_row(const Source<T>& s, int64_t r, int64_t first, int64_t n) {
  if (s.map != RowMap::kIndex || s.index[r] < 0) return;
  const T* row = plain_row(s, r) + first;
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(row + i);
}

// Row number j of a segment; null if it adds nothing.
template <class T>
CAVS_INLINE const T* segment_row(const Source<T>& s, int64_t j) {
  const int64_t i = s.index != nullptr ? s.index[j] : j;
  return i < 0 ? nullptr : s.data + (i - s.base) * s.stride;
}

// Columns [first, first + n) of row r: a pointer into the source if it is a single row, null for
// zeros, else the sum, stored in `buffer`. Rows are added in ascending order.
template <class T>
const T* read_row(const Source<T>& s, int64_t r, int64_t first, int64_t n, T* buffer) {
  if (s.map != RowMap::kSegmentSum) {
    const T* row = plain_row(s, r);
    return row == nullptr ? nullptr : row + first;
  }
  const T* sum = nullptr;
  for (int64_t j = s.offsets[r]; j < s.offsets[r + 1]; ++j) {
    const T* row = segment_row(s, j);
    if (row == nullptr) continue;
    if (sum == nullptr) {
      sum = row + first;
    } else {
      add(buffer, sum, row + first, n);
      sum = buffer;
    }
  }
  return sum;
}

// The same, always copied to `out`.
template <class T>
CAVS_INLINE void copy_row(const Source<T>& s, int64_t r, int64_t first, int64_t n, T* out) {
  const T* row = read_row(s, r, first, n, out);
  if (row == nullptr)
    fill(out, T(0), n);
  else if (row != out)
    copy(out, row, n);
}

// All sources side by side.
template <class T>
CAVS_INLINE void join_row(const Source<T>* sources, int32_t num_sources, int64_t r, T* out) {
  for (int32_t i = 0; i < num_sources; ++i) {
    copy_row(sources[i], r, 0, sources[i].width, out);
    out += sources[i].width;
  }
}

template <class T>
CAVS_INLINE void fetch_rows(const Source<T>* sources, int32_t num_sources, int64_t r) {
  for (int32_t i = 0; i < num_sources; ++i) fetch_row(sources[i], r, 0, sources[i].width);
}

CAVS_INLINE constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
CAVS_INLINE constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
CAVS_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
CAVS_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// One operand of a product, A or B, and its sources.
enum class Side : uint8_t { kLeft, kRight };
template <Side side, class T>
CAVS_INLINE const Source<T>* sources_of(const RowPairs<T>& part) {
  return side == Side::kLeft ? part.a : part.b;
}
template <Side side, class T>
CAVS_INLINE int32_t num_sources_of(const RowPairs<T>& part) {
  return side == Side::kLeft ? part.num_a : part.num_b;
}

// Rows [begin, begin + rows) of operands stacked one below the other, counted from the first of
// all.
template <class T>
struct Block {
  const RowPairs<T>* parts;
  int32_t count;
  int64_t begin, rows;

  // Call f(part, first row in the part, rows, first row in the block) for each part.
  template <class F>
  CAVS_INLINE void for_each(F f) const {
    int64_t start = 0;  // first row of the part
    for (int32_t i = 0; i < count; ++i) {
      const int64_t size = parts[i].end - parts[i].begin;
      const int64_t from = larger(begin - start, 0), to = smaller(begin + rows - start, size);
      if (from < to) f(parts[i], parts[i].begin + from, to - from, start + from - begin);
      start += size;
    }
  }

  // The part that row r of the block belongs to, and its row there.
  struct Row {
    const RowPairs<T>* part;
    int64_t number;
  };
  CAVS_INLINE Row row(int64_t r) const {
    const RowPairs<T>* part = parts;
    for (r += begin; r >= part->end - part->begin; ++part) r -= part->end - part->begin;
    return {part, part->begin + r};
  }
};

template <class T>
CAVS_INLINE int64_t rows_of(const RowPairs<T>* parts, int32_t count) {
  int64_t rows = 0;
  for (int32_t i = 0; i < count; ++i) rows += parts[i].end - parts[i].begin;
  return rows;
}

}  // namespace
}  // namespace cavs::CAVS_ISA
