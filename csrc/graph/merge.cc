#include "graph/merge.h"

#include <algorithm>
#include <utility>

#include "graph/feature_rows.h"

namespace cavs {
namespace {

class Merging {
 public:
  Merging(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
          const std::vector<FeatureColumn>& of_edges, int32_t child_numbers)
      : batch_(batch),
        of_vertices_(of_vertices),
        of_edges_(of_edges),
        child_numbers_(child_numbers),
        positions_(batch.all->position.empty() ? nullptr : batch.all->position.data()),
        vertices_(of_vertices, batch.num_vertices()),
        edges_(of_edges, of_edges.empty() ? 0 : batch.num_edges()) {
    const auto n = static_cast<size_t>(batch.num_vertices());
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    table_.resize(size);
    first_parent_.assign(n, -1);
    Graph& graph = *graph_;
    graph.children_first = true;
    graph.offsets.resize(n + 1);
    graph.offsets[0] = 0;
    graph.level.resize(n);
    for (auto* values : {&merged_.distinct, &merged_.vertex, &merged_.copies}) values->resize(n);
    merged_.leaf.resize(n);
    graph.children.resize(batch.num_edges());
    merged_.edge.resize(batch.num_edges());
  }

  MergedGraph run() {
    const bool plain = vertices_.exact && of_edges_.empty();
    const auto [count, edges] = plain ? walk<true>() : walk<false>();
    Graph& graph = *graph_;
    graph.offsets.resize(count + 1);
    for (auto* values : {&graph.level, &merged_.vertex, &merged_.copies}) values->resize(count);
    merged_.leaf.resize(count);
    for (auto* values : {&graph.children, &merged_.edge}) values->resize(edges);
    if (positions_ != nullptr) {
      graph.position.resize(edges);
      for (int32_t e = 0; e < edges; ++e) graph.position[e] = positions_[merged_.edge[e]];
    }
    graph.num_levels = batch_.all->num_levels;
    number_children(&graph);
    merged_.graph = batch_of(std::move(graph_));
    return std::move(merged_);
  }

 private:
  struct Entry {
    uint32_t tag = 0;      // the other half of the hash
    int32_t vertices = 0;  // number of distinct vertices up to that of the entry; 0 if it is free
  };
  // Distinct vertices found so far. A local variable, whose members stay in registers.
  struct Found {
    int32_t *offsets, *children, *level, *vertex, *edge, *copies;
    int32_t* first_parent;
    uint32_t* leaf;
    int32_t count = 0, edges = 0;
  };

  // Merge graph by graph, children first: copies have equal levels, so the first copy is found
  // first. `plain`: rows are equal if their words are, and there are no edge columns. Return the
  // number of distinct vertices and of their edges.
  template <bool plain>
  std::pair<int32_t, int32_t> walk() {
    Graph& graph = *graph_;
    Found found{graph.offsets.data(),  graph.children.data(), graph.level.data(),
                merged_.vertex.data(), merged_.edge.data(),   merged_.copies.data(),
                first_parent_.data(),  merged_.leaf.data()};
    note_uses();
    const int32_t* const order = batch_.all->children_first ? nullptr : by_level();
    for (int32_t i = 0; i < batch_.num_vertices(); ++i) visit<plain>(order ? order[i] : i, found);
    return {found.count, found.edges};
  }

  // Set bit k of a vertex's mask if it is the k-th child of another.
  void note_uses() {
    const Graph& all = *batch_.all;
    uses_.assign(all.num_vertices(), 0);
    for (int32_t v = 0; child_numbers_ > 0 && v < all.num_vertices(); ++v) {
      const int32_t begin = all.offsets[v];
      for (int32_t e = begin; e < all.offsets[v + 1]; ++e) {
        const int32_t k = all.position_of(e, begin);
        if (k >= child_numbers_) break;
        uses_[all.children[e]] |= uint32_t{1} << k;
      }
    }
  }

  // Sort the vertices of each graph by level, then by number.
  const int32_t* by_level() {
    const Graph& all = *batch_.all;
    order_.resize(all.level.size());
    PooledVector<int32_t> next;
    for (int32_t g = 0; g < batch_.num_graphs(); ++g) {
      const int32_t begin = batch_.vertex_offsets[g], end = batch_.vertex_offsets[g + 1];
      if (begin == end) continue;
      const auto level = all.level.begin();
      next.assign(*std::max_element(level + begin, level + end) + 2, 0);
      for (int32_t v = begin; v < end; ++v) ++next[all.level[v] + 1];
      for (size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
      for (int32_t v = begin; v < end; ++v) order_[begin + next[all.level[v]]++] = v;
    }
    return order_.data();
  }

  template <bool plain>
  void visit(int32_t v, Found& found) {
    const Graph& all = *batch_.all;
    const int32_t edge = all.offsets[v], arity = all.offsets[v + 1] - edge;
    const uint32_t uses = arity == 0 ? uses_[v] : 0;
    int32_t* const distinct = merged_.distinct.data();
    const int32_t* const below = all.children.data() + edge;
    // Distinct children are written where they stay if the vertex is new.
    int32_t* const children = found.children + found.edges;
    for (int32_t i = 0; i < arity; ++i) children[i] = distinct[below[i]];
    if (arity > 0) {  // most are the first parent of their first child and need no hash
      int32_t& parent = found.first_parent[children[0]];
      if (parent < 0) {
        parent = distinct[v] = found.count;
        add(found, v, edge, arity, uses, all.level[v]);
        return;
      }
      if (same<plain>(found, parent, v, edge, arity, uses)) {
        distinct[v] = parent;
        ++found.copies[parent];
        return;
      }
    }
    uint64_t hash = mixed(vertices_.words[v], (uint64_t(arity) << 32 | uses) * kSpread);
    for (int32_t i = 0; i < arity; ++i) {
      hash = mixed(hash, static_cast<uint64_t>(children[i]));
      if (!plain && !of_edges_.empty()) hash = mixed(hash, edges_.words[edge + i]);
      if (positions_ != nullptr) hash = mixed(hash, static_cast<uint64_t>(positions_[edge + i]));
    }
    const auto tag = static_cast<uint32_t>(hash >> 32);
    const size_t last = table_.size() - 1;
    for (size_t at = hash & last;; at = (at + 1) & last) {
      const Entry there = table_[at];
      if (there.vertices == 0) {
        add(found, v, edge, arity, uses, all.level[v]);
        table_[at] = {tag, found.count};
        distinct[v] = found.count - 1;
        return;
      }
      const int32_t d = there.vertices - 1;
      if (there.tag == tag && same<plain>(found, d, v, edge, arity, uses)) {
        distinct[v] = d;
        ++found.copies[d];
        return;
      }
    }
  }

  template <bool plain>
  bool same(const Found& found, int32_t d, int32_t v, int32_t edge, int32_t arity,
            uint32_t uses) const {
    const int32_t first = found.vertex[d], begin = found.offsets[d];
    if (vertices_.words[first] != vertices_.words[v] || found.offsets[d + 1] - begin != arity ||
        (arity == 0 && found.leaf[d] != uses)) {
      return false;
    }
    for (int32_t i = 0; i < arity; ++i) {
      if (found.children[begin + i] != found.children[found.edges + i]) return false;
    }
    for (int32_t i = 0; positions_ != nullptr && i < arity; ++i) {
      if (positions_[found.edge[begin + i]] != positions_[edge + i]) return false;
    }
    for (size_t c = 0; !plain && !vertices_.exact && c < of_vertices_.size(); ++c) {
      if (!same_row(of_vertices_[c], first, v)) return false;
    }
    for (size_t c = 0; !plain && c < of_edges_.size(); ++c) {
      for (int32_t i = 0; i < arity; ++i) {
        if (!same_row(of_edges_[c], found.edge[begin + i], edge + i)) return false;
      }
    }
    return true;
  }

  void add(Found& found, int32_t v, int32_t edge, int32_t arity, uint32_t uses, int32_t level) {
    const int32_t d = found.count++, begin = found.edges;
    for (int32_t i = 0; i < arity; ++i) found.edge[begin + i] = edge + i;
    found.vertex[d] = v;
    found.copies[d] = 1;
    found.leaf[d] = arity == 0 ? uses : leaf_children(found, begin, arity);
    found.level[d] = level;
    found.edges = found.offsets[d + 1] = begin + arity;
  }

  // Bit k is set if the k-th child has no children.
  uint32_t leaf_children(const Found& found, int32_t begin, int32_t arity) const {
    uint32_t mask = 0;
    for (int32_t i = 0; i < arity; ++i) {
      const int32_t k = positions_ != nullptr ? positions_[found.edge[begin + i]] : i;
      if (k >= child_numbers_) break;
      const int32_t c = found.children[begin + i];
      mask |= uint32_t{found.offsets[c] == found.offsets[c + 1]} << k;
    }
    return mask;
  }

  const GraphBatch& batch_;
  const std::vector<FeatureColumn>&of_vertices_, &of_edges_;
  const int32_t child_numbers_;
  const int32_t* const positions_;  // edge of the batch -> position; null if none is empty
  const FeatureRows vertices_, edges_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  MergedGraph merged_;
  PooledVector<Entry> table_;  // open addressing, at most half full; without first parents
  PooledVector<int32_t>
      first_parent_;  // distinct vertex -> the first vertex whose first child it is, or -1
  PooledVector<int32_t> order_;
  PooledVector<uint32_t> uses_;  // per vertex
};

}  // namespace

MergedGraph merge_copies(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                         const std::vector<FeatureColumn>& of_edges, int32_t child_numbers) {
  return Merging(batch, of_vertices, of_edges, child_numbers).run();
}

}  // namespace cavs
