#include <algorithm>
#include <utility>

#include "graph/feature_rows.h"
#include "graph/merge.h"

namespace cavs {
namespace {

class Components {
 public:
  Components(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
             const std::vector<FeatureColumn>& of_edges)
      : all_(*batch.all),
        of_vertices_(of_vertices),
        of_edges_(of_edges),
        positions_(all_.position.empty() ? nullptr : all_.position.data()),
        vertices_(of_vertices, all_.num_vertices()),
        edges_(of_edges, of_edges.empty() ? 0 : all_.num_edges()) {
    find();
  }

  MergedGraph merge() {
    const int32_t n = all_.num_vertices();
    merged_.distinct.resize(n);
    size_t size = 16;
    while (size < 2 * (begin_.size() - 1)) size *= 2;
    table_.resize(size);
    for (int32_t c = 0; c < static_cast<int32_t>(begin_.size()) - 1; ++c) visit(c);
    return finish();
  }

 private:
  struct Entry {
    uint32_t tag = 0;        // the other half of the hash
    int32_t components = 0;  // one more than the component; 0 if the entry is free
  };

  // Number the components in the order of their first vertices, and list the vertices of each in
  // ascending order.
  void find() {
    const int32_t n = all_.num_vertices();
    PooledVector<int32_t> least(n), number(n);  // a vertex -> one of its component, in the end the
                                                // first; the first -> number of the component
    const auto first_of = [&](int32_t v) {
      while (least[v] != v) v = least[v] = least[least[v]];
      return v;
    };
    for (int32_t v = 0; v < n; ++v) least[v] = v;
    for (int32_t v = 0; v < n; ++v) {
      for (int32_t e = all_.offsets[v]; e < all_.offsets[v + 1]; ++e) {
        const int32_t a = first_of(v), b = first_of(all_.children[e]);
        least[std::max(a, b)] = std::min(a, b);
      }
    }
    begin_ = {0};
    for (int32_t v = 0; v < n; ++v) {  // the first vertex of a component comes before the others
      const int32_t first = first_of(v);
      if (first == v) {
        number[v] = static_cast<int32_t>(begin_.size()) - 1;
        begin_.push_back(0);
      }
      least[v] = first;
      ++begin_[number[first] + 1];
    }
    for (size_t c = 1; c < begin_.size(); ++c) begin_[c] += begin_[c - 1];
    PooledVector<int32_t> next(begin_.begin(), begin_.end() - 1);
    order_.resize(n);
    local_.resize(n);
    for (int32_t v = 0; v < n; ++v) {
      const int32_t c = number[least[v]];
      local_[v] = next[c] - begin_[c];
      order_[next[c]++] = v;
    }
  }

  uint64_t hash_of(int32_t c) const {
    uint64_t hash = mixed(kSpread, static_cast<uint64_t>(begin_[c + 1] - begin_[c]));
    for (int32_t i = begin_[c]; i < begin_[c + 1]; ++i) {
      const int32_t v = order_[i];
      hash = mixed(mixed(hash, vertices_.words[v]),
                   static_cast<uint64_t>(all_.offsets[v + 1] - all_.offsets[v]));
      for (int32_t e = all_.offsets[v]; e < all_.offsets[v + 1]; ++e) {
        hash = mixed(hash, static_cast<uint64_t>(local_[all_.children[e]]));
        if (!of_edges_.empty()) hash = mixed(hash, edges_.words[e]);
        if (positions_ != nullptr) hash = mixed(hash, static_cast<uint64_t>(positions_[e]));
      }
    }
    return hash;
  }

  bool same_edges(int32_t v, int32_t u) const {
    const int32_t at = all_.offsets[v], other = all_.offsets[u];
    const int32_t arity = all_.offsets[v + 1] - at;
    if (all_.offsets[u + 1] - other != arity) return false;
    for (int32_t i = 0; i < arity; ++i) {
      if (local_[all_.children[at + i]] != local_[all_.children[other + i]]) return false;
      if (positions_ != nullptr && positions_[at + i] != positions_[other + i]) return false;
      for (const FeatureColumn& column : of_edges_) {
        if (!same_row(column, at + i, other + i)) return false;
      }
    }
    return true;
  }

  bool same(int32_t a, int32_t b) const {
    const int32_t count = begin_[a + 1] - begin_[a];
    if (begin_[b + 1] - begin_[b] != count) return false;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t v = order_[begin_[a] + i], u = order_[begin_[b] + i];
      if (vertices_.words[v] != vertices_.words[u] || !same_edges(v, u)) return false;
      for (size_t c = 0; !vertices_.exact && c < of_vertices_.size(); ++c) {
        if (!same_row(of_vertices_[c], v, u)) return false;
      }
    }
    return true;
  }

  void visit(int32_t c) {
    const uint64_t hash = hash_of(c);
    const auto tag = static_cast<uint32_t>(hash >> 32);
    const size_t last = table_.size() - 1;
    for (size_t at = hash & last;; at = (at + 1) & last) {
      const Entry there = table_[at];
      const int32_t known = there.components - 1;
      if (known >= 0 && (there.tag != tag || !same(known, c))) continue;
      if (known < 0) table_[at] = {tag, c + 1};
      for (int32_t i = begin_[c]; i < begin_[c + 1]; ++i) {
        const int32_t v = order_[i];
        if (known < 0) {
          merged_.distinct[v] = static_cast<int32_t>(merged_.vertex.size());
          merged_.vertex.push_back(v);
          merged_.copies.push_back(1);
        } else {
          merged_.distinct[v] = merged_.distinct[order_[begin_[known] + local_[v]]];
          ++merged_.copies[merged_.distinct[v]];
        }
      }
      return;
    }
  }

  MergedGraph finish() {
    auto graph = std::make_shared<Graph>();
    graph->chains = all_.chains;
    graph->children_first = all_.children_first;
    graph->num_levels = all_.num_levels;
    graph->offsets = {0};
    for (const int32_t v : merged_.vertex) {
      for (int32_t e = all_.offsets[v]; e < all_.offsets[v + 1]; ++e) {
        graph->children.push_back(merged_.distinct[all_.children[e]]);
        merged_.edge.push_back(e);
        if (positions_ != nullptr) graph->position.push_back(positions_[e]);
      }
      graph->offsets.push_back(static_cast<int32_t>(graph->children.size()));
      graph->level.push_back(all_.level[v]);
    }
    number_children(graph.get());
    merged_.leaf.assign(merged_.vertex.size(), 0);
    merged_.graph = batch_of(std::move(graph));
    return std::move(merged_);
  }

  const Graph& all_;
  const std::vector<FeatureColumn>&of_vertices_, &of_edges_;
  const int32_t* const positions_;  // edge -> position; null if none is empty
  const FeatureRows vertices_, edges_;
  PooledVector<int32_t> order_;  // vertices by component
  PooledVector<int32_t> begin_;  // component -> first in `order_`; the number of all after the last
  PooledVector<int32_t> local_;  // vertex -> number within its component
  PooledVector<Entry> table_;    // open addressing, at most half full
  MergedGraph merged_;
};

}  // namespace

MergedGraph merge_components(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                             const std::vector<FeatureColumn>& of_edges) {
  return Components(batch, of_vertices, of_edges).merge();
}

MergedStructures merge_structures(const GraphBatch& samples,
                                  const std::vector<StructureCopies>& structures) {
  std::vector<std::shared_ptr<const GraphBatch>> each;
  for (const StructureCopies& s : structures) each.push_back(batch_of(s.graph->all));
  MergedStructures merged{stack_structures(each), {}};
  merged.distinct.reserve(samples.num_vertices());
  for (size_t s = 0; s < structures.size(); ++s) {
    const auto number = static_cast<int32_t>(s);
    const int32_t first = merged.graph->first_vertex(number);
    const int32_t count = samples.first_vertex(number + 1) - samples.first_vertex(number);
    const int32_t* const distinct = structures[s].distinct;
    for (int32_t v = 0; v < count; ++v)
      merged.distinct.push_back(first + (distinct ? distinct[v] : v));
  }
  for (const Link& link : samples.links) {
    Link found{link.target, link.source, {}, {}};
    const int32_t* const vertex = structures[link.target].vertex;
    const int32_t count = structures[link.target].graph->num_vertices();
    found.offsets.reserve(count + 1);
    found.offsets.push_back(0);
    for (int32_t d = 0; d < count; ++d) {
      const int32_t v = vertex ? vertex[d] : d;
      for (int32_t i = link.offsets[v]; i < link.offsets[v + 1]; ++i)
        found.vertices.push_back(merged.distinct[link.vertices[i]]);
      found.offsets.push_back(static_cast<int32_t>(found.vertices.size()));
    }
    merged.graph->links.push_back(std::move(found));
  }
  return merged;
}

}  // namespace cavs
