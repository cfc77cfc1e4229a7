// A graph with its features, in one block of memory: those of a batch lie anywhere in a data set,
// and each place that has to be looked up costs a wait for memory.
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
  // The rows of a feature, one after the other. indices: they are int32, where -1 says "absent".
  struct Rows {
    const std::byte* data;
    size_t bytes;
    bool indices;
  };
  struct Column {
    std::byte* data;
    size_t bytes;
    bool absent;  // an index of it is -1
  };

  // kind: samples of one kind have features of the same names and types.
  Sample(const Graph& graph, const std::vector<Rows>& features, const void* kind);

  const GraphView& graph() const { return graph_; }
  std::span<const Column> columns() const { return columns_; }
  const void* kind() const { return kind_; }
  const std::shared_ptr<std::byte[]>& block() const { return block_; }
  // Asks for the memory of it, or the beginning of that.
  void fetch() const;

 private:
  std::shared_ptr<std::byte[]> block_;
  size_t bytes_;
  GraphView graph_;
  std::span<const Column> columns_;
  const void* kind_;
};

// Columns `number` of all samples one after the other.
void join_columns(const std::vector<const Sample*>& samples, size_t number, std::byte* out);

}  // namespace cavs
