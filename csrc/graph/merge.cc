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

// A word for each row of some columns: the row itself, if it has at most eight bytes, or a hash.
struct Rows {
  Rows(const std::vector<FeatureColumn>& columns, int32_t count) : words(count) {
    size_t bytes = 0;
    for (const auto& column : columns) bytes += column.bytes;
    exact = bytes <= sizeof(uint64_t);
    size_t at = 0;  // in the word
    for (const auto& column : columns) {
      if (exact && column.bytes == sizeof(uint32_t)) {  // most: an int32 or a float
        place<sizeof(uint32_t)>(column, at);
      } else if (exact && column.bytes == sizeof(uint64_t)) {
        place<sizeof(uint64_t)>(column, at);
      } else {
        mix(column);
      }
      at += column.bytes;
    }
  }

  Recycled<uint64_t> words;
  bool exact;  // rows are equal if their words are

 private:
  template <size_t bytes>
  void place(const FeatureColumn& column, size_t at) {
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

bool equal(const FeatureColumn& column, int32_t a, int32_t b) {
  return std::memcmp(column.data + column.bytes * static_cast<size_t>(a),
                     column.data + column.bytes * static_cast<size_t>(b), column.bytes) == 0;
}

class Merging {
 public:
  Merging(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
          const std::vector<FeatureColumn>& of_edges, int32_t child_numbers)
      : batch_(batch),
        of_vertices_(of_vertices),
        of_edges_(of_edges),
        child_numbers_(child_numbers),
        vertices_(of_vertices, batch.num_vertices()),
        edges_(of_edges, of_edges.empty() ? 0 : batch.num_edges()) {
    const auto n = static_cast<size_t>(batch.num_vertices());
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    table_.resize(size);
    graph_->children_first = true;
    graph_->offsets.resize(n + 1);
    graph_->level.resize(n);
    for (auto* values : {&merged_.distinct, &merged_.vertex, &merged_.copies}) values->resize(n);
    merged_.leaf.resize(n);
    graph_->children.resize(batch.num_edges());
    merged_.edge.resize(batch.num_edges());
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
    const auto edges = static_cast<size_t>(graph_->offsets[count_]);
    graph_->offsets.resize(count_ + 1);
    for (auto* values : {&graph_->level, &merged_.vertex, &merged_.copies}) values->resize(count_);
    merged_.leaf.resize(count_);
    for (auto* values : {&graph_->children, &merged_.edge}) values->resize(edges);
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
  const Recycled<int32_t>& by_level(const Graph& graph) {
    Recycled<int32_t> next(graph.num_levels + 1);
    for (const int32_t level : graph.level) ++next[level + 1];
    for (size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
    order_.resize(graph.level.size());
    for (int32_t v = 0; v < graph.num_vertices(); ++v) order_[next[graph.level[v]]++] = v;
    return order_;
  }

  void visit(const At& at, int32_t local) {
    const int32_t v = at.vertex + local, begin = at.graph.offsets[local];
    const int32_t arity = at.graph.offsets[local + 1] - begin;
    const int32_t edge = at.edge + begin;  // its first, in the batch
    // Its children among the distinct vertices stand where they stay if it is new.
    int32_t* const children = graph_->children.data() + graph_->offsets[count_];
    uint64_t hash = mixed(mixed(0, vertices_.words[v]), uint64_t(arity) << 32 | uses_[local]);
    for (int32_t i = 0; i < arity; ++i) {
      children[i] = merged_.distinct[at.vertex + at.graph.children[begin + i]];
      hash = mixed(hash, static_cast<uint64_t>(children[i]));
      if (!of_edges_.empty()) hash = mixed(hash, edges_.words[edge + i]);
    }
    const auto tag = static_cast<uint32_t>(hash >> 32);
    size_t slot = hash & (table_.size() - 1);
    while (
        table_[slot].distinct >= 0 &&
        !(table_[slot].tag == tag && same(table_[slot].distinct, v, edge, arity, uses_[local]))) {
      slot = (slot + 1) & (table_.size() - 1);
    }
    if (table_[slot].distinct < 0) {
      table_[slot] = {tag, add(v, edge, arity, uses_[local], at.graph.level[local])};
    }
    merged_.distinct[v] = table_[slot].distinct;
    ++merged_.copies[table_[slot].distinct];
  }

  bool same(int32_t distinct, int32_t v, int32_t edge, int32_t arity, uint32_t uses) const {
    const int32_t first = merged_.vertex[distinct], begin = graph_->offsets[distinct];
    const int32_t* const children = graph_->children.data();
    if (vertices_.words[first] != vertices_.words[v] ||
        graph_->offsets[distinct + 1] - begin != arity ||
        (arity == 0 && merged_.leaf[distinct] != uses) ||
        !std::equal(children + begin, children + begin + arity,
                    children + graph_->offsets[count_])) {
      return false;
    }
    for (size_t c = 0; !vertices_.exact && c < of_vertices_.size(); ++c) {
      if (!equal(of_vertices_[c], first, v)) return false;
    }
    for (const auto& column : of_edges_) {
      for (int32_t i = 0; i < arity; ++i) {
        if (!equal(column, merged_.edge[begin + i], edge + i)) return false;
      }
    }
    return true;
  }

  int32_t add(int32_t v, int32_t edge, int32_t arity, uint32_t uses, int32_t level) {
    const int32_t begin = graph_->offsets[count_];
    for (int32_t i = 0; i < arity; ++i) merged_.edge[begin + i] = edge + i;
    merged_.vertex[count_] = v;
    merged_.leaf[count_] = arity == 0 ? uses : leaf_children(begin, arity);
    graph_->level[count_] = level;
    graph_->offsets[count_ + 1] = begin + arity;
    return count_++;
  }

  // Bit k: the k-th child has no children.
  uint32_t leaf_children(int32_t begin, int32_t arity) const {
    uint32_t mask = 0;
    for (int32_t k = 0; k < std::min(arity, child_numbers_); ++k) {
      const int32_t c = graph_->children[begin + k];
      if (graph_->offsets[c] == graph_->offsets[c + 1]) mask |= uint32_t{1} << k;
    }
    return mask;
  }

  const GraphBatch& batch_;
  const std::vector<FeatureColumn>&of_vertices_, &of_edges_;
  const int32_t child_numbers_;
  const Rows vertices_, edges_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  MergedGraph merged_;
  int32_t count_ = 0;     // distinct vertices so far
  Recycled<Slot> table_;  // open addressing, at most half full
  Recycled<int32_t> order_;
  Recycled<uint32_t> uses_;  // of the vertices of the graph at hand
};

}  // namespace

MergedGraph merge_copies(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                         const std::vector<FeatureColumn>& of_edges, int32_t child_numbers) {
  return Merging(batch, of_vertices, of_edges, child_numbers).run();
}

}  // namespace cavs
