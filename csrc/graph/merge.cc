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

// Of a word for every row; most columns are an int32 or a float a row.
template <typename Word>
void mix(const FeatureColumn& column, std::vector<uint64_t>* hashes) {
  const std::byte* at = column.data;
  for (uint64_t& hash : *hashes) {
    Word word;
    std::memcpy(&word, at, sizeof word);
    hash = mixed(hash, word);
    at += sizeof word;
  }
}

void mix_bytes(const FeatureColumn& column, std::vector<uint64_t>* hashes) {
  const std::byte* at = column.data;
  for (uint64_t& hash : *hashes) {
    for (size_t i = 0; i < column.bytes; i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, at + i, std::min(sizeof word, column.bytes - i));
      hash = mixed(hash, word);
    }
    at += column.bytes;
  }
}

// A hash of each row of the columns together.
std::vector<uint64_t> hashes_of(const std::vector<FeatureColumn>& columns, int32_t rows) {
  std::vector<uint64_t> hashes(rows);
  for (const auto& column : columns) {
    if (column.bytes == sizeof(uint32_t)) {
      mix<uint32_t>(column, &hashes);
    } else {
      mix_bytes(column, &hashes);
    }
  }
  return hashes;
}

bool equal(const FeatureColumn& column, int32_t a, int32_t b) {
  const std::byte* left = column.data + column.bytes * static_cast<size_t>(a);
  const std::byte* right = column.data + column.bytes * static_cast<size_t>(b);
  if (column.bytes == sizeof(uint32_t)) return std::memcmp(left, right, sizeof(uint32_t)) == 0;
  return std::memcmp(left, right, column.bytes) == 0;
}

class Merging {
 public:
  Merging(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
          const std::vector<FeatureColumn>& of_edges, int32_t child_numbers)
      : batch_(batch),
        of_vertices_(of_vertices),
        of_edges_(of_edges),
        child_numbers_(child_numbers),
        vertex_hashes_(hashes_of(of_vertices, batch.num_vertices())),
        edge_hashes_(hashes_of(of_edges, of_edges.empty() ? 0 : batch.num_edges())) {
    const auto n = static_cast<size_t>(batch.num_vertices());
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    table_.resize(size);
    merged_.distinct.resize(n);
    graph_->offsets.reserve(n + 1);
    graph_->children.reserve(batch.num_edges());
    graph_->level.reserve(n);
    for (auto* of_distinct : {&merged_.vertex, &merged_.copies}) of_distinct->reserve(n);
    merged_.edge.reserve(batch.num_edges());
    merged_.leaf.reserve(n);
    graph_->offsets.push_back(0);
    graph_->children_first = true;
  }

  // Graph by graph, children first: copies are of one level, so the first of them is found first.
  MergedGraph run() {
    for (int32_t g = 0; g < batch_.num_graphs(); ++g) {
      const Graph& graph = *batch_.graphs[g];
      const At at{graph, batch_.vertex_offsets[g], batch_.edge_offsets[g]};
      note_uses(graph);
      if (graph.children_first) {
        for (int32_t v = 0; v < graph.num_vertices(); ++v) visit(at, v);
      } else {
        for (const int32_t v : by_level(graph)) visit(at, v);
      }
      graph_->num_levels = std::max(graph_->num_levels, graph.num_levels);
    }
    merged_.graph = std::move(graph_);
    return std::move(merged_);
  }

 private:
  struct At {
    const Graph& graph;
    int32_t vertex, edge;  // its first ones in the batch
  };
  struct Slot {
    uint32_t tag = 0;  // the other half of the hash
    int32_t distinct = -1;
  };

  // Bit k of the mask of a vertex without children: it is the k-th child of another.
  void note_uses(const Graph& graph) {
    uses_.assign(graph.num_vertices(), 0);
    for (int32_t v = 0; child_numbers_ > 0 && v < graph.num_vertices(); ++v) {
      const int32_t begin = graph.offsets[v];
      const int32_t end = std::min(graph.offsets[v + 1], begin + child_numbers_);
      for (int32_t e = begin; e < end; ++e) {
        const int32_t c = graph.children[e];
        if (graph.offsets[c] == graph.offsets[c + 1]) uses_[c] |= uint32_t{1} << (e - begin);
      }
    }
  }

  // A graph's vertices by level, inside a level by number.
  const std::vector<int32_t>& by_level(const Graph& graph) {
    std::vector<int32_t> next(graph.num_levels + 1);
    for (const int32_t level : graph.level) ++next[level + 1];
    for (size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
    order_.resize(graph.level.size());
    for (int32_t v = 0; v < graph.num_vertices(); ++v) order_[next[graph.level[v]]++] = v;
    return order_;
  }

  void visit(const At& at, int32_t local) {
    const int32_t v = at.vertex + local;
    const int32_t begin = at.graph.offsets[local], end = at.graph.offsets[local + 1];
    const int32_t edge = at.edge + begin;  // its first, in the batch
    uint64_t hash =
        mixed(vertex_hashes_[v], static_cast<uint64_t>(end - begin) << 32 | uses_[local]);
    children_.clear();
    for (int32_t e = begin; e < end; ++e) {
      const int32_t child = merged_.distinct[at.vertex + at.graph.children[e]];
      children_.push_back(child);
      hash = mixed(hash, static_cast<uint64_t>(child));
      if (!edge_hashes_.empty()) hash = mixed(hash, edge_hashes_[at.edge + e]);
    }
    const auto tag = static_cast<uint32_t>(hash >> 32);
    size_t slot = hash & (table_.size() - 1);
    while (table_[slot].distinct >= 0 &&
           !(table_[slot].tag == tag && same(table_[slot].distinct, v, edge, uses_[local]))) {
      slot = (slot + 1) & (table_.size() - 1);
    }
    if (table_[slot].distinct < 0) {
      table_[slot] = {tag, add(v, edge, uses_[local], at.graph.level[local])};
    }
    const int32_t found = table_[slot].distinct;
    merged_.distinct[v] = found;
    ++merged_.copies[found];
  }

  bool same(int32_t distinct, int32_t v, int32_t edge, uint32_t uses) const {
    const int32_t begin = graph_->offsets[distinct], end = graph_->offsets[distinct + 1];
    if (!std::equal(children_.begin(), children_.end(), graph_->children.begin() + begin,
                    graph_->children.begin() + end) ||
        (begin == end && merged_.leaf[distinct] != uses)) {
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

  int32_t add(int32_t v, int32_t edge, uint32_t uses, int32_t level) {
    for (const int32_t child : children_) {
      graph_->children.push_back(child);
      merged_.edge.push_back(edge++);
    }
    graph_->offsets.push_back(static_cast<int32_t>(graph_->children.size()));
    graph_->level.push_back(level);
    merged_.vertex.push_back(v);
    merged_.copies.push_back(0);
    merged_.leaf.push_back(children_.empty() ? uses : leaf_children());
    return static_cast<int32_t>(merged_.vertex.size()) - 1;
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
  const std::vector<uint64_t> vertex_hashes_, edge_hashes_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  MergedGraph merged_;
  std::vector<Slot> table_;  // open addressing, at most half full
  std::vector<int32_t> children_, order_;
  std::vector<uint32_t> uses_;  // of the vertices of the graph at hand
};

}  // namespace

MergedGraph merge_copies(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                         const std::vector<FeatureColumn>& of_edges, int32_t child_numbers) {
  return Merging(batch, of_vertices, of_edges, child_numbers).run();
}

}  // namespace cavs
