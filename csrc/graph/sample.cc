#include "graph/sample.h"

#include <algorithm>
#include <cstring>

namespace cavs {
namespace {

constexpr size_t kLine = 64, kMostBytes = 2048;  // the processor prefetches the rest

// Reserve an aligned array of `count` elements in a block; return its offset.
template <class T>
size_t reserve(size_t* end, size_t count) {
  const size_t begin = (*end + 7) & ~size_t{7};
  *end = begin + count * sizeof(T);
  return begin;
}

}  // namespace

Sample::Sample(const Graph& graph, const std::vector<Rows>& features, const void* layout)
    : bytes_(0), graph_(view_of(graph)), layout_(layout) {
  const size_t vertices = graph.level.size(), edges = graph.children.size();
  const size_t columns = reserve<Column>(&bytes_, features.size());
  const size_t offsets = reserve<int32_t>(&bytes_, vertices + 1);
  const size_t children = reserve<int32_t>(&bytes_, edges);
  const size_t level = reserve<int32_t>(&bytes_, vertices);
  const size_t number = reserve<uint8_t>(&bytes_, vertices);
  const size_t position = reserve<int32_t>(&bytes_, graph.position.size());
  std::vector<size_t> begins;
  for (const Rows& rows : features) begins.push_back(reserve<std::byte>(&bytes_, rows.bytes));
  block_ = std::make_shared_for_overwrite<std::byte[]>(bytes_);
  std::byte* const block = block_.get();
  const auto copy = [&]<class T>(size_t begin, const T* from, size_t count) {
    if (count > 0) std::memcpy(block + begin, from, count * sizeof(T));
    return reinterpret_cast<const T*>(block + begin);
  };
  graph_.offsets = copy(offsets, graph_.offsets, vertices + 1);
  graph_.children = copy(children, graph_.children, edges);
  graph_.level = copy(level, graph_.level, vertices);
  graph_.number = copy(number, graph_.number, vertices);
  if (graph_.position) graph_.position = copy(position, graph_.position, edges);
  auto* const found = reinterpret_cast<Column*>(block + columns);
  for (size_t i = 0; i < features.size(); ++i) {
    const Rows& rows = features[i];
    copy(begins[i], rows.data, rows.bytes);
    const auto* const values = reinterpret_cast<const int32_t*>(block + begins[i]);
    const int32_t* const end = values + (rows.indices ? rows.bytes / sizeof(int32_t) : 0);
    new (found + i) Column{block + begins[i], rows.bytes,
                           std::any_of(values, end, [](int32_t x) { return x < 0; })};
  }
  columns_ = {found, features.size()};
}

void Sample::fetch() const {
  for (size_t i = 0; i < std::min(bytes_, kMostBytes); i += kLine)
    __builtin_prefetch(block_.get() + i);
}

void join_columns(const std::vector<const Sample::Column*>& columns, std::byte* out) {
  for (const Sample::Column* const column : columns) {
    if (column == nullptr || column->bytes == 0) continue;
    std::memcpy(out, column->data, column->bytes);
    out += column->bytes;
  }
}

}  // namespace cavs
