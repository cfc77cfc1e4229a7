#include "exec/features.h"

#include <algorithm>
#include <stdexcept>

#include "exec/instruction.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

const char* noun(Space order) {
  return order == kVertexSpace || is_present(order) ? "vertex"
         : order == kEdgeSpace                      ? "edge"
         : order == kGraphSpace                     ? "graph"
                                                    : "row";
}
const char* nouns(Space order) {
  return order == kVertexSpace || is_present(order) ? "vertices"
         : order == kEdgeSpace                      ? "edges"
         : order == kGraphSpace                     ? "graphs"
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
  const auto has_present = [&](int32_t feature) {
    features = std::max(features, feature + 1);
    for (const Present& p : presents_) {
      if (p.feature == feature) return;
    }
    presents_.push_back({feature, {}, {}, {}});
  };
  const auto read = [&](const Instruction& in, const Operand& o) {
    if (of_present(o.array)) has_present(o.argument);
    if (o.map != RowMap::kIndex || o.array != Array::kIndexFeature) return;
    Use& u = use(o.argument, in.space);
    const Buffer& b = p.buffers[o.buffer];
    if (b.role == Role::kParam) limit(u, sizes[b.index] / b.width, in.label);
    if (b.role == Role::kFeature) u.tables.push_back({b.index, in.label});
  };
  for (const Instruction& in : p.instructions) {
    if (is_present(in.space)) has_present(feature_of(in.space));
    each_operand(in, [&](const Operand& o) { read(in, o); });
    if (const auto below = traits_of(in).index_limit; below != nullptr) {
      limit(use(in.argument, in.space), below(in, sizes), in.label);
    }
  }
  for (const Use& u : uses_) features = std::max(features, u.feature + 1);
  for (const Stage& s : p.stages) {
    if (is_present(s.space)) has_present(feature_of(s.space));
  }
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kCount) features = std::max(features, b.index + 1);
    if (is_present(b.space)) has_present(feature_of(b.space));
  }
  counted_.assign(features, false);
  counts_.assign(features, 0);
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kCount && b.index >= 0) counted_[b.index] = true;
  }
  present_.assign(features, {});
}

IndexFeatures::Use& IndexFeatures::use(int32_t feature, Space space) {
  const Space order = whole_of(space);
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
  const Space order = whole_of(space);
  for (const Use& u : uses_) {
    if (u.feature == feature && u.order == order) return u.values;
  }
  throw std::logic_error("int feature " + std::to_string(feature) + " is not bound");
}

// Row order, like everything else that reads these arrays.
void IndexFeatures::find_present(const Schedule& s, const std::vector<IntFeature>& features) {
  for (Present& p : presents_) {
    const IntFeature& f = features[p.feature];
    if (f.rows != static_cast<int64_t>(s.order.size())) {
      throw std::invalid_argument("int feature " + std::to_string(p.feature) + " has " +
                                  std::to_string(f.rows) + " values, the batch has " +
                                  std::to_string(s.order.size()) + " vertices");
    }
    p.rows.clear();
    p.order.clear();
    p.place.assign(s.order.size(), -1);
    for (size_t r = 0; r < s.order.size(); ++r) {
      if (f.data[s.order[r]] < 0) continue;
      p.place[r] = static_cast<int32_t>(p.rows.size());
      p.rows.push_back(static_cast<int32_t>(r));
      p.order.push_back(s.order[r]);
    }
    present_[p.feature] = {0, static_cast<int32_t>(p.rows.size())};
  }
}

const IndexFeatures::Present& IndexFeatures::present_of(int32_t feature) const {
  for (const Present& p : presents_) {
    if (p.feature == feature) return p;
  }
  throw std::logic_error("nothing asks where int feature " + std::to_string(feature) +
                         " is present");
}

const std::vector<int32_t>& IndexFeatures::present(Array array, int32_t feature) const {
  const Present& p = present_of(feature);
  return array == Array::kPresent ? p.rows : array == Array::kPresentOrder ? p.order : p.place;
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
  find_present(s, features);
  for (Use& u : uses_) {
    const IntFeature& f = features[u.feature];
    const Present* some = is_present(u.order) ? &present_of(feature_of(u.order)) : nullptr;
    const int32_t* order = some                      ? some->order.data()
                           : u.order == kVertexSpace ? s.order.data()
                           : u.order == kEdgeSpace   ? s.edge_order.data()
                                                     : nullptr;
    const size_t all = some || u.order == kVertexSpace ? s.order.size()
                       : u.order == kEdgeSpace         ? s.edge_order.size()
                       : u.order == kGraphSpace        ? s.num_graphs()
                                                       : 1;
    const size_t rows = some ? some->order.size() : all;
    if (f.rows != static_cast<int64_t>(all)) {
      throw std::invalid_argument("int feature " + std::to_string(u.feature) + " has " +
                                  std::to_string(f.rows) + " values, the batch has " +
                                  std::to_string(all) + " " + nouns(u.order));
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
    const auto at = std::find_if(f.data, f.data + all, [&](int32_t v) { return v >= limit; });
    throw std::out_of_range("[" + *label + "] int feature " + std::to_string(u.feature) + " is " +
                            std::to_string(*at) + " at " + noun(u.order) + " " +
                            std::to_string(at - f.data) + ", needs less than " +
                            std::to_string(limit));
  }
}

}  // namespace cavs
