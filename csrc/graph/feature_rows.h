// Rows of features, compared and hashed byte by byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/pooled_vector.h"
#include "graph/merge.h"

namespace cavs {

inline constexpr uint64_t kSpread = 0xbf58476d1ce4e5b9u;  // odd, without a pattern

inline uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

// One word per row of some columns: the row itself, if it has at most eight bytes, else a hash.
struct FeatureRows {
  FeatureRows(const std::vector<FeatureColumn>& columns, int32_t count) : words(count, 0) {
    size_t bytes = 0;
    for (const auto& column : columns) bytes += column.bytes;
    exact = bytes <= sizeof(uint64_t);
    size_t at = 0;  // offset in the word
    for (const auto& column : columns) {
      if (exact && column.bytes == sizeof(uint32_t)) {  // the common case: an int32 or a float
        copy_rows<sizeof(uint32_t)>(column, at);
      } else if (exact && column.bytes == sizeof(uint64_t)) {
        copy_rows<sizeof(uint64_t)>(column, at);
      } else {
        mix(column);
      }
      at += column.bytes;
    }
  }

  PooledVector<uint64_t> words;
  bool exact;  // rows are equal if their words are

 private:
  template <size_t bytes>
  void copy_rows(const FeatureColumn& column, size_t at) {
    const std::byte* row = column.data;
    for (uint64_t& word : words) {
      std::memcpy(reinterpret_cast<std::byte*>(&word) + at, row, bytes);
      row += bytes;
    }
  }

  void mix(const FeatureColumn& column) {
    exact = false;
    const std::byte* row = column.data;
    for (uint64_t& word : words) {
      for (size_t i = 0; i < column.bytes; i += sizeof(uint64_t)) {
        uint64_t part = 0;
        std::memcpy(&part, row + i, std::min(sizeof part, column.bytes - i));
        word = mixed(word, part);
      }
      row += column.bytes;
    }
  }
};

inline bool same_row(const FeatureColumn& column, int32_t a, int32_t b) {
  return std::memcmp(column.data + column.bytes * static_cast<size_t>(a),
                     column.data + column.bytes * static_cast<size_t>(b), column.bytes) == 0;
}

}  // namespace cavs
