#include "exec/features.h"

#include <algorithm>
#include <stdexcept>

#include "exec/spaces.h"

namespace cavs {
namespace {

Space order_of(Space s) { return is_vertex(s) ? kVertexSpace : is_edge(s) ? kEdgeSpace : s; }
const char* noun(Space order) {
  return order == kVertexSpace  ? "vertex"
         : order == kEdgeSpace  ? "edge"
         : order == kGraphSpace ? "graph"
                                : "row";
}
const char* nouns(Space order) {
  return order == kVertexSpace  ? "vertices"
         : order == kEdgeSpace  ? "edges"
         : order == kGraphSpace ? "graphs"
                                : "rows";
}

}  // namespace

IndexFeatures::IndexFeatures(const Program& p, const std::vector<int64_t>& sizes) {
  int32_t features = 0;
  const auto limit = [&](Use& u, int64_t rows, const std::string& label) {
    if (rows < u.limit) {
      u.limit = rows;
      u.label = label;
    }
  };
  const auto read = [&](const Instruction& in, const Operand& o) {
    if (o.map != RowMap::kIndex || o.array != Array::kIndexFeature) return;
    Use& u = use(o.argument, in.space);
    const Buffer& b = p.buffers[o.buffer];
    if (b.role == Role::kParam) limit(u, sizes[b.index] / b.width, in.label);
    if (b.role == Role::kFeature) u.tables.push_back({b.index, in.label});
  };
  for (const Instruction& in : p.instructions) {
    for (const Operand& o : in.inputs) read(in, o);
    for (const MapLoadSpec& l : in.loads) read(in, l.operand);
    if (in.kind == InstructionKind::kCrossEntropy ||
        in.kind == InstructionKind::kCrossEntropyGrad) {
      limit(use(in.argument, in.space), in.inputs[0].width, in.label);
    }
    if (in.kind == InstructionKind::kLookupGrad) {
      limit(use(in.argument, in.space), sizes[in.argument2] / in.inputs[0].width, in.label);
    }
  }
  for (const Use& u : uses_) features = std::max(features, u.feature + 1);
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kCount) features = std::max(features, b.index + 1);
  }
  counted_.assign(features, false);
  counts_.assign(features, 0);
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kCount && b.index >= 0) counted_[b.index] = true;
  }
}

IndexFeatures::Use& IndexFeatures::use(int32_t feature, Space space) {
  const Space order = order_of(space);
  for (Use& u : uses_) {
    if (u.feature == feature && u.order == order) return u;
  }
  Use u;
  u.feature = feature;
  u.order = order;
  uses_.push_back(std::move(u));
  return uses_.back();
}

const std::vector<int32_t>& IndexFeatures::rows(int32_t feature, Space space) const {
  const Space order = order_of(space);
  for (const Use& u : uses_) {
    if (u.feature == feature && u.order == order) return u.values;
  }
  throw std::logic_error("int feature " + std::to_string(feature) + " is not bound");
}

void IndexFeatures::bind(const Schedule& s, const std::vector<IntFeature>& features,
                         const std::vector<int64_t>& float_rows) {
  if (features.size() < counts_.size()) {
    throw std::invalid_argument("the program reads " + std::to_string(counts_.size()) +
                                " int features, found " + std::to_string(features.size()));
  }
  for (size_t f = 0; f < counts_.size(); ++f) {
    if (!counted_[f]) continue;
    const int32_t* values = features[f].data;
    counts_[f] = std::count_if(values, values + features[f].rows, [](int32_t v) { return v >= 0; });
  }
  for (Use& u : uses_) {
    const IntFeature& f = features[u.feature];
    const int32_t* order = u.order == kVertexSpace ? s.order.data()
                           : u.order == kEdgeSpace ? s.edge_order.data()
                                                   : nullptr;
    const size_t rows = u.order == kVertexSpace  ? s.order.size()
                        : u.order == kEdgeSpace  ? s.edge_order.size()
                        : u.order == kGraphSpace ? s.batch->num_graphs()
                                                 : 1;
    if (f.rows != static_cast<int64_t>(rows)) {
      throw std::invalid_argument("int feature " + std::to_string(u.feature) + " has " +
                                  std::to_string(f.rows) + " values, the batch has " +
                                  std::to_string(rows) + " " + nouns(u.order));
    }
    u.values.resize(rows);
    int32_t largest = -1;
    for (size_t r = 0; r < rows; ++r) {
      const int32_t v = f.data[order ? order[r] : r];
      largest = std::max(largest, v);
      u.values[r] = v;
    }
    int64_t limit = u.limit;
    const std::string* label = &u.label;
    for (const Table& t : u.tables) {
      if (float_rows[t.feature] < limit) {
        limit = float_rows[t.feature];
        label = &t.label;
      }
    }
    if (largest < limit) continue;
    const auto at = std::find_if(f.data, f.data + rows, [&](int32_t v) { return v >= limit; });
    throw std::out_of_range("[" + *label + "] int feature " + std::to_string(u.feature) + " is " +
                            std::to_string(*at) + " at " + noun(u.order) + " " +
                            std::to_string(at - f.data) + ", needs less than " +
                            std::to_string(limit));
  }
}

}  // namespace cavs
