#include "exec/bind.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "exec/index_arrays.h"
#include "exec/instruction.h"
#include "exec/names.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

const char* noun(Space order) {
  return order == kVertexSpace || is_selected(order) ? "vertex"
         : order == kEdgeSpace                       ? "edge"
         : order == kGraphSpace                      ? "graph"
         : is_pairs(order)                           ? "pair"
                                                     : "row";
}
const char* nouns(Space order) {
  return order == kVertexSpace || is_selected(order) ? "vertices"
         : order == kEdgeSpace                       ? "edges"
         : order == kGraphSpace                      ? "graphs"
         : is_pairs(order)                           ? "pairs"
                                                     : "rows";
}

// Number of rows that a feature read through `o` must have; -1: any.
int64_t rows_needed(const Program& p, const Operand& o, Space space, const Schedule& s) {
  if (o.map == RowMap::kOne) return 1;
  if (o.map == RowMap::kSelf) return space == kGraphSpace ? s.num_graphs() : 1;
  switch (o.array) {
    case Array::kOrder:
    case Array::kPresentOrder:
      return s.rows_of(structure_of(p, space)).size();
    case Array::kEdgeOrder:
      return s.edges_of(structure_of(p, space)).size();
    case Array::kPairOrder:
      return s.num_pairs(o.argument);
    case Array::kGraphOf:
    case Array::kRowGraphs:
    case Array::kRootGraphs:
    case Array::kLeafGraphs:
      return s.num_graphs();
    default:
      return -1;
  }
}

template <class T>
class Binder {
 public:
  Binder(const Program& p, const Addresses<T>& at) : p_(p), at_(at) {}

  Source<T> source(const Instruction& in, const Operand& o) const {
    const Buffer& b = p_.buffers[o.buffer];
    Source<T> s;
    s.width = o.width;
    s.map = o.map;
    T* data = nullptr;
    address(o.buffer, data, s.stride, s.base);
    s.data = data;
    switch (b.role) {
      case Role::kOnes:  // stride 0: a segment sum counts the rows of the segment
        s.data = at_.ones;
        break;
      case Role::kCount:
        s.data = at_.counts + b.index;
        s.map = RowMap::kOne;
        return s;
      case Role::kFeature:
        feature(in, o, b, s);
        break;
      default:
        break;
    }
    if (s.data != nullptr && b.role != Role::kOnes) s.data += o.column;
    if (o.map == RowMap::kIndex || o.map == RowMap::kSegmentSum) {
      const IndexArrays arrays = index_arrays(o, in.space, *at_.schedule, *at_.index_features);
      s.index = arrays.index.data();
      s.offsets = arrays.offsets.data();
    }
    return s;
  }

  void address(int32_t buffer, T*& data, int64_t& stride, int64_t& base) const {
    const Buffer& b = p_.buffers[buffer];
    stride = b.width;
    base = at_.spaces->rows_of(b).begin;
    data = nullptr;
    switch (b.role) {
      case Role::kArena:
        data = at_.arena + (*at_.lifetimes)[buffer].offset / sizeof(T);
        break;
      case Role::kParam:
        data = (*at_.params)[b.index], base = 0;
        break;
      case Role::kGrad:
        data = (*at_.grads)[b.index], base = 0;
        break;
      case Role::kOnes:
      case Role::kCount:
        stride = 0, base = 0;
        break;
      default:
        break;
    }
  }

 private:
  void feature(const Instruction& in, const Operand& o, const Buffer& b, Source<T>& s) const {
    const auto complain = [&](const std::string& what) {
      throw std::invalid_argument("[" + in.label + "] float feature " + std::to_string(b.index) +
                                  " " + what);
    };
    if (b.index >= static_cast<int32_t>(at_.features->size())) {
      complain("is missing: found " + std::to_string(at_.features->size()) + " float features");
    }
    const FloatFeature<T>& f = (*at_.features)[b.index];
    if (f.width != b.width) {
      complain("has rows of " + std::to_string(f.width) + ", needs " + std::to_string(b.width));
    }
    const int64_t rows = rows_needed(p_, o, in.space, *at_.schedule);
    if (rows >= 0 && f.rows != rows) {
      complain("has " + std::to_string(f.rows) + " rows, the batch needs " + std::to_string(rows) +
               " (read by " + (o.array == Array::kNone ? "row" : name_of(o.array)) + ")");
    }
    s.data = f.data;
    s.base = 0;
  }

  const Program& p_;
  const Addresses<T>& at_;
};

}  // namespace

IndexFeatures::IndexFeatures(const Program& p, const std::vector<int64_t>& sizes) {
  int32_t features = 0;
  const auto limit = [&](Use& u, int64_t rows, const std::string& label) {
    if (rows < u.limit) {
      u.limit = rows;
      u.label = label;
    }
  };
  const auto has_selected = [&](Space space) {
    features = std::max(features, feature_of(space) + 1);
    for (const Selected& known : selected_) {
      if (known.space == space) return;
    }
    selected_.push_back({space, {}, {}, {}, {}});
  };
  const auto read = [&](const Instruction& in, const Operand& o) {
    if (of_selected(o.array)) has_selected(cavs::selected(o.array, o.argument));
    if (o.map != RowMap::kIndex || o.array != Array::kIndexFeature) return;
    Use& u = use(o.argument, in.space);
    const Buffer& b = p.buffers[o.buffer];
    if (b.role == Role::kParam) limit(u, sizes[b.index] / b.width, in.label);
    if (b.role == Role::kFeature) u.tables.push_back({b.index, in.label});
  };
  for (const Instruction& in : p.instructions) {
    if (is_selected(in.space)) has_selected(in.space);
    each_operand(in, [&](const Operand& o) { read(in, o); });
    if (const auto below = traits_of(in).index_limit; below != nullptr) {
      limit(use(in.argument, in.space), below(in, sizes), in.label);
    }
  }
  for (const Use& u : uses_) features = std::max(features, u.feature + 1);
  for (const Stage& s : p.stages) {
    if (is_selected(s.space)) has_selected(s.space);
  }
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kCount) features = std::max(features, b.index + 1);
    if (is_selected(b.space)) has_selected(b.space);
  }
  counted_.assign(features, false);
  counts_.assign(features, 0);
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kCount && b.index >= 0) counted_[b.index] = true;
  }
  ranges_.present.assign(features, {});
  ranges_.distinct.assign(features, {});
  for (int32_t f = 0; f < features; ++f) structures_.push_back(int_structure(p, f));
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
void IndexFeatures::select(const Schedule& s, const std::vector<IntFeature>& features) {
  for (Selected& p : selected_) {
    const int32_t feature = feature_of(p.space);
    const IntFeature& f = features[feature];
    const RowRange rows = rows_of(s, feature);
    if (f.rows != rows.size()) {
      throw std::invalid_argument("int feature " + std::to_string(feature) + " has " +
                                  std::to_string(f.rows) + " values, the batch has " +
                                  std::to_string(rows.size()) + " vertices");
    }
    p.rows.clear();
    p.order.clear();
    p.place.assign(s.order.size(), -1);
    if (is_distinct(p.space)) {
      select_distinct(s, f.data, p);
      ranges_.distinct[feature] = {0, static_cast<int32_t>(p.order.size())};
      continue;
    }
    for (int32_t r = rows.begin; r < rows.end; ++r) {
      if (f.data[s.order[r]] < 0) continue;
      p.place[r] = static_cast<int32_t>(p.rows.size());
      p.rows.push_back(r);
      p.order.push_back(s.order[r]);
    }
    ranges_.present[feature] = {0, static_cast<int32_t>(p.rows.size())};
  }
}

// A value beyond the limit, which `bind` refuses, has a row for each vertex.
void IndexFeatures::select_distinct(const Schedule& s, const int32_t* values,
                                    Selected& found) const {
  int64_t limit = 0;
  for (const Use& u : uses_) {
    if (u.order == found.space && u.limit < INT32_MAX) limit = u.limit;
  }
  const RowRange rows = rows_of(s, feature_of(found.space));
  std::vector<int32_t>& place_of = found.place_of;
  place_of.resize(limit, -1);
  found.order.reserve(rows.size());  // nothing below throws, so that all of place_of is -1 again
  for (int32_t r = rows.begin; r < rows.end; ++r) {
    const int32_t v = values[s.order[r]];
    if (v < 0) continue;
    auto place = static_cast<int32_t>(found.order.size());
    if (v < limit) {
      if (place_of[v] < 0) place_of[v] = place;
      place = place_of[v];
    }
    found.place[r] = place;
    if (place == static_cast<int32_t>(found.order.size())) found.order.push_back(s.order[r]);
  }
  for (const int32_t vertex : found.order) {
    if (values[vertex] < limit) place_of[values[vertex]] = -1;
  }
}

const IndexFeatures::Selected& IndexFeatures::selected(Space space) const {
  for (const Selected& p : selected_) {
    if (p.space == space) return p;
  }
  throw std::logic_error("nothing asks for rows of " + space_name(space));
}

const std::vector<int32_t>& IndexFeatures::selected(Array array, int32_t feature) const {
  const Selected& p = selected(cavs::selected(array, feature));
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
  select(s, features);
  for (Use& u : uses_) {
    const IntFeature& f = features[u.feature];
    const Selected* some = is_selected(u.order) ? &selected(u.order) : nullptr;
    const int32_t* order = some                      ? some->order.data()
                           : u.order == kVertexSpace ? s.order.data()
                           : u.order == kEdgeSpace   ? s.edge_order.data()
                           : is_pairs(u.order)       ? s.pair_order(link_number(u.order))
                                                     : nullptr;
    RowRange range{0, u.order == kGraphSpace ? s.num_graphs() : 1};
    if (some || u.order == kVertexSpace) range = rows_of(s, u.feature);
    if (u.order == kEdgeSpace) range = s.edges_of(structures_[u.feature]);
    if (is_pairs(u.order)) range = {0, s.num_pairs(link_number(u.order))};
    const int32_t all = range.size();
    if (some) range = {0, static_cast<int32_t>(some->order.size())};
    if (f.rows != all) {
      throw std::invalid_argument("int feature " + std::to_string(u.feature) + " has " +
                                  std::to_string(f.rows) + " values, the batch has " +
                                  std::to_string(all) + " " + nouns(u.order));
    }
    u.values.resize(range.end);
    std::fill_n(u.values.begin(), range.begin, -1);  // rows of other structures
    int32_t largest = -1;
    for (int32_t r = range.begin; r < range.end; ++r) {
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

template <class T>
void bind_shapes(const Program& p, const Analysis& analysis, BoundProgram<T>& bound,
                 std::vector<Patch>& patches) {
  const auto patch = [&](Patch::Target target, size_t at, int32_t buffer, int32_t column) {
    const Buffer& b = p.buffers[buffer];
    if (b.role != Role::kScratch) return;
    patches.push_back({target, relation_of(b.space), static_cast<int32_t>(at), buffer, column});
  };
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    const InstructionTraits& traits = traits_of(in);
    Bound<T> b;
    b.type = in.type;
    b.execution = &traits.execution<T>();
    b.space = in.space;
    b.relation = relation_of(in.space);
    b.accumulate = in.accumulate && !analysis.overwrites[i];
    b.split = in.split;
    b.first = static_cast<int32_t>(bound.sources.size());
    b.count = static_cast<int32_t>(in.inputs.size());
    b.first_load = static_cast<int32_t>(bound.loads.size());
    b.first_store = static_cast<int32_t>(bound.stores.size());
    b.first_patch = static_cast<int32_t>(patches.size());
    const auto [k, n] =
        traits.shape == nullptr ? ProductShape{width_of(in), 0} : traits.shape(p, in);
    b.k = k, b.n = n;
    for (const Operand& o : in.inputs) {
      patch(Patch::Target::kSource, bound.sources.size(), o.buffer, o.column);
      bound.sources.emplace_back();
    }
    for (const MapLoadSpec& l : in.loads) {
      patch(Patch::Target::kLoad, bound.loads.size(), l.operand.buffer, l.operand.column);
      bound.loads.push_back({{}, l.outer_stride, l.scalar, is_of_parents(in, l.operand)});
    }
    for (const MapStoreSpec& s : in.stores) {
      patch(Patch::Target::kStore, bound.stores.size(), s.buffer, s.column);
      bound.stores.push_back({nullptr, 0, 0, s.outer_stride, s.mode, s.reg});
    }
    if (in.out.buffer >= 0) patch(Patch::Target::kOut, i, in.out.buffer, in.out.column);
    b.map.ops = in.ops.data();
    b.map.num_loads = static_cast<int32_t>(in.loads.size());
    b.map.num_ops = static_cast<int32_t>(in.ops.size());
    b.map.num_stores = static_cast<int32_t>(in.stores.size());
    b.map.num_registers = in.registers;
    b.map.outer = in.outer;
    b.map.inner = in.inner;
    b.end_patch = static_cast<int32_t>(patches.size());
    bound.instructions.push_back(b);
  }
}

template <class T>
void bind_addresses(const Program& p, const Addresses<T>& at, BoundProgram<T>& bound) {
  const Binder<T> binder(p, at);
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    Bound<T>& b = bound.instructions[i];
    for (size_t j = 0; j < in.inputs.size(); ++j) {
      bound.sources[b.first + j] = binder.source(in, in.inputs[j]);
    }
    for (size_t j = 0; j < in.loads.size(); ++j) {
      bound.loads[b.first_load + j].source = binder.source(in, in.loads[j].operand);
    }
    for (size_t j = 0; j < in.stores.size(); ++j) {
      MapStore<T>& store = bound.stores[b.first_store + j];
      binder.address(in.stores[j].buffer, store.data, store.stride, store.base);
      if (store.data != nullptr) store.data += in.stores[j].column;
    }
    if (in.out.buffer >= 0) {
      binder.address(in.out.buffer, b.out, b.stride, b.base);
      if (b.out != nullptr) b.out += in.out.column;
    }
    if (b.execution->bind != nullptr) b.execution->bind(p, in, at, b);
  }
}

template void bind_shapes(const Program&, const Analysis&, BoundProgram<float>&,
                          std::vector<Patch>&);
template void bind_shapes(const Program&, const Analysis&, BoundProgram<double>&,
                          std::vector<Patch>&);
template void bind_addresses(const Program&, const Addresses<float>&, BoundProgram<float>&);
template void bind_addresses(const Program&, const Addresses<double>&, BoundProgram<double>&);

}  // namespace cavs
