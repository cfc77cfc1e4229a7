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

// Bit k of the mask of a vertex without children: it is the k-th child of another, k < numbers.
std::vector<uint32_t> uses_of(const GraphBatch& batch, int32_t numbers) {
  std::vector<uint32_t> uses(batch.num_vertices());
  for (int32_t g = 0; numbers > 0 && g < batch.num_graphs(); ++g) {
    const Graph& graph = *batch.graphs[g];
    for (int32_t v = 0; v < graph.num_vertices(); ++v) {
      const int32_t begin = graph.offsets[v];
      const int32_t end = std::min(graph.offsets[v + 1], begin + numbers);
      for (int32_t e = begin; e < end; ++e) {
        const int32_t c = graph.children[e];
        if (graph.offsets[c] == graph.offsets[c + 1]) {
          uses[batch.vertex_offsets[g] + c] |= uint32_t{1} << (e - begin);
        }
      }
    }
  }
  return uses;
}

class Merging {
 public:
  Merging(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
          const std::vector<FeatureColumn>& of_edges, int32_t child_numbers)
      : batch_(batch),
        of_vertices_(of_vertices),
        of_edges_(of_edges),
        child_numbers_(child_numbers),
        uses_(uses_of(batch, child_numbers)) {
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
    uint64_t hash = mixed(children_.size(), uses_[v]);
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
                    graph_->children.begin() + end) ||
        (begin == end && merged_.leaf[distinct] != uses_[v])) {
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
    merged_.leaf.push_back(children_.empty() ? uses_[v] : leaf_children());
    hashes_.push_back(hash);
    return static_cast<int32_t>(hashes_.size()) - 1;
  }

  // Bit k: the k-th of `children_` has no children.
  uint32_t leaf_children() const {
    uint32_t mask = 0;
    const size_t numbers = std::min(children_.size(), static_cast<size_t>(child_numbers_));
    for (size_t k = 0; k < numbers; ++k) {
      const int32_t c = children_[k];
      if (graph_->offsets[c] == graph_->offsets[c + 1]) mask |= uint32_t{1} << k;
    }
    return mask;
  }

  const GraphBatch& batch_;
  const std::vector<FeatureColumn>&of_vertices_, &of_edges_;
  const int32_t child_numbers_;
  const std::vector<uint32_t> uses_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  MergedGraph merged_;
  std::vector<int32_t> table_, children_;  // open addressing, at most half full
  std::vector<uint64_t> hashes_;
};

}  // namespace

MergedGraph merge_copies(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                         const std::vector<FeatureColumn>& of_edges, int32_t child_numbers) {
  return Merging(batch, of_vertices, of_edges, child_numbers).run();
}

}  // namespace cavs
