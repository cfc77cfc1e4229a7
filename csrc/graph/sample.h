// A graph with its features in one block of memory: the samples of a batch are scattered over a
// data set, and each pointer that has to be followed costs a cache miss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace cavs {

class Sample {
 public:
  // Contiguous rows of a feature. indices: rows are int32, where -1 means "absent".
  struct Rows {
    const std::byte* data;
    size_t bytes;
    bool indices;
  };
  struct Column {
    std::byte* data;
    size_t bytes;
    bool absent;  // an index is -1
  };

  // layout: samples of one layout have features of the same names and types.
  Sample(const Graph& graph, const std::vector<Rows>& features, const void* layout);

  const GraphView& graph() const { return graph_; }
  std::span<const Column> columns() const { return columns_; }
  const void* layout() const { return layout_; }
  const std::shared_ptr<std::byte[]>& block() const { return block_; }
  // Prefetch its block, or the beginning of it.
  void fetch() const;

 private:
  std::shared_ptr<std::byte[]> block_;
  size_t bytes_;
  GraphView graph_;
  std::span<const Column> columns_;
  const void* layout_;
};

// Concatenate columns of samples, null where a sample has none.
void join_columns(const std::vector<const Sample::Column*>& columns, std::byte* out);

}  // namespace cavs
