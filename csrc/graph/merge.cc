#include "graph/merge.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cavs {
namespace {

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

uint64_t mixed(uint64_t hash, const FeatureColumn& column, int32_t row) {
  const std::byte* at = column.data + column.bytes * static_cast<size_t>(row);
  for (size_t i = 0; i < column.bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at + i, std::min(sizeof word, column.bytes - i));
    hash = mixed(hash, word);
  }
  return hash;
}

bool equal(const FeatureColumn& column, int32_t a, int32_t b) {
  return std::memcmp(column.data + column.bytes * static_cast<size_t>(a),
                     column.data + column.bytes * static_cast<size_t>(b), column.bytes) == 0;
}

// Vertices of the whole batch by level, inside a level by number.
struct ByLevel {
  explicit ByLevel(const GraphBatch& batch) : graph_of(batch.num_vertices()) {
    std::vector<int32_t> next;
    for (const auto& graph : batch.graphs) {
      next.resize(std::max(next.size(), static_cast<size_t>(graph->num_levels) + 1));
      for (const int32_t level : graph->level) ++next[level + 1];
    }
    for (size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
    order.resize(graph_of.size());
    for (int32_t g = 0; g < batch.num_graphs(); ++g) {
      const auto& level = batch.graphs[g]->level;
      for (size_t v = 0; v < level.size(); ++v) {
        const auto id = batch.vertex_offsets[g] + static_cast<int32_t>(v);
        graph_of[id] = g;
        order[next[level[v]]++] = id;
      }
    }
  }
  std::vector<int32_t> order, graph_of;
};

class Merging {
 public:
  Merging(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
          const std::vector<FeatureColumn>& of_edges)
      : batch_(batch), of_vertices_(of_vertices), of_edges_(of_edges) {
    size_t size = 16;
    while (size < 2 * static_cast<size_t>(batch.num_vertices())) size *= 2;
    table_.assign(size, -1);
    merged_.distinct.resize(batch.num_vertices());
    graph_->offsets.push_back(0);
  }

  MergedGraph run() {
    const ByLevel levels(batch_);
    for (const int32_t v : levels.order) visit(v, levels.graph_of[v]);
    graph_->num_levels = graph_->level.back() + 1;
    merged_.graph = std::move(graph_);
    return std::move(merged_);
  }

 private:
  void visit(int32_t v, int32_t g) {
    const Graph& graph = *batch_.graphs[g];
    const int32_t first = batch_.vertex_offsets[g], local = v - first;
    const int32_t begin = graph.offsets[local], end = graph.offsets[local + 1];
    children_.clear();
    for (int32_t e = begin; e < end; ++e) {
      children_.push_back(merged_.distinct[first + graph.children[e]]);
    }
    const int32_t edge = batch_.edge_offsets[g] + begin;  // its first, in the batch
    const uint64_t hash = hash_of(v, edge);
    size_t slot = hash & (table_.size() - 1);
    while (table_[slot] >= 0 && !(hashes_[table_[slot]] == hash && same(table_[slot], v, edge))) {
      slot = (slot + 1) & (table_.size() - 1);
    }
    if (table_[slot] < 0) table_[slot] = add(v, edge, hash, graph.level[local]);
    const int32_t found = table_[slot];
    merged_.distinct[v] = found;
    ++merged_.copies[found];
  }

  uint64_t hash_of(int32_t v, int32_t edge) const {
    uint64_t hash = children_.size();
    for (const auto& column : of_vertices_) hash = mixed(hash, column, v);
    for (size_t i = 0; i < children_.size(); ++i) {
      hash = mixed(hash, static_cast<uint64_t>(children_[i]));
      for (const auto& column : of_edges_)
        hash = mixed(hash, column, edge + static_cast<int32_t>(i));
    }
    return hash;
  }

  bool same(int32_t distinct, int32_t v, int32_t edge) const {
    const int32_t begin = graph_->offsets[distinct], end = graph_->offsets[distinct + 1];
    if (!std::equal(children_.begin(), children_.end(), graph_->children.begin() + begin,
                    graph_->children.begin() + end)) {
      return false;
    }
    for (const auto& column : of_vertices_) {
      if (!equal(column, merged_.vertex[distinct], v)) return false;
    }
    for (const auto& column : of_edges_) {
      for (int32_t e = begin; e < end; ++e) {
        if (!equal(column, merged_.edge[e], edge + e - begin)) return false;
      }
    }
    return true;
  }

  int32_t add(int32_t v, int32_t edge, uint64_t hash, int32_t level) {
    for (const int32_t child : children_) {
      graph_->children.push_back(child);
      merged_.edge.push_back(edge++);
    }
    graph_->offsets.push_back(static_cast<int32_t>(graph_->children.size()));
    graph_->level.push_back(level);
    merged_.vertex.push_back(v);
    merged_.copies.push_back(0);
    hashes_.push_back(hash);
    return static_cast<int32_t>(hashes_.size()) - 1;
  }

  const GraphBatch& batch_;
  const std::vector<FeatureColumn>&of_vertices_, &of_edges_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  MergedGraph merged_;
  std::vector<int32_t> table_, children_;  // open addressing, at most half full
  std::vector<uint64_t> hashes_;
};

}  // namespace

MergedGraph merge_copies(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                         const std::vector<FeatureColumn>& of_edges) {
  return Merging(batch, of_vertices, of_edges).run();
}

}  // namespace cavs
