#include "exec/bind.h"

#include <stdexcept>
#include <string>

#include "exec/names.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

// Split one array that holds offsets, then rows.
IndexArrays segments(const int32_t* offsets, size_t count) {
  return {{offsets + count + 1, static_cast<size_t>(offsets[count])}, {offsets, count + 1}};
}

// Number of rows that a feature read through `o` must have; -1: any.
int64_t rows_needed(const Operand& o, Space space, const Schedule& s) {
  if (o.map == RowMap::kOne) return 1;
  if (o.map == RowMap::kSelf) return space == kGraphSpace ? s.num_graphs() : 1;
  switch (o.array) {
    case Array::kOrder:
    case Array::kPresentOrder:
      return static_cast<int64_t>(s.order.size());
    case Array::kEdgeOrder:
      return static_cast<int64_t>(s.edge_order.size());
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
    const int64_t rows = rows_needed(o, in.space, *at_.schedule);
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

IndexArrays segments_of(const Operand& o, const Schedule& s) {
  const size_t vertices = s.order.size();
  switch (o.array) {
    case Array::kChildren:
      return {s.child, s.edge_offsets};
    case Array::kEdges:
      return {{}, s.edge_offsets};
    case Array::kOut:
      return {s.out_edges, s.out_offsets};
    case Array::kParents:
      return {{s.out_parents(), s.out_edges.size()}, s.out_offsets};
    case Array::kNthParents:
      return segments(s.nth_parents(o.argument), vertices);
    case Array::kGraphRows:
      return {s.graph_rows, s.graph_offsets};
    case Array::kGraphRoots:
      return segments(s.graph_roots(), s.num_graphs());
    case Array::kGraphLeaves:
      return segments(s.graph_leaves(), s.num_graphs());
    case Array::kRowGraphs:
      return segments(s.row_graphs(), vertices);
    case Array::kRootGraphs:
      return segments(s.root_graphs(), vertices);
    case Array::kLeafGraphs:
      return segments(s.leaf_graphs(), vertices);
    default:
      return {};
  }
}

IndexArrays index_arrays(const Operand& o, Space space, const Schedule& s,
                         const IndexFeatures& features) {
  const size_t vertices = s.order.size(), edges = s.edge_order.size();
  switch (o.array) {
    case Array::kNone:
      return {};
    case Array::kOrder:
      return {s.order, {}};
    case Array::kEdgeOrder:
      return {s.edge_order, {}};
    case Array::kChild:
      return {s.child, {}};
    case Array::kParent:
      return {s.parent, {}};
    case Array::kNthChild:
      return {{s.nth_child(o.argument), vertices}, {}};
    case Array::kNthLeaf:
      return {{s.nth_leaf(o.argument), vertices}, {}};
    case Array::kNthEdge:
      return {{s.nth_edge(o.argument), vertices}, {}};
    case Array::kParentIfNth:
      return {{s.parent_if_nth(o.argument), edges}, {}};
    case Array::kGraphOf:
      if (s.graph_of.size() != vertices) {
        throw std::invalid_argument("merged vertices are not of one graph each");
      }
      return {s.graph_of, {}};
    case Array::kIndexFeature:
      return {features.rows(o.argument, space), {}};
    case Array::kPresent:
    case Array::kPresentOrder:
    case Array::kPlace:
      return {features.present(o.array, o.argument), {}};
    default:
      return segments_of(o, s);
  }
}

template <class T>
void bind_shapes(const Program& p, const Analysis& analysis, BoundProgram<T>& bound,
                 std::vector<Patch>& patches) {
  const auto patch = [&](Patch::Target target, size_t at, int32_t buffer, int32_t column) {
    const Buffer& b = p.buffers[buffer];
    if (b.role != Role::kScratch) return;
    patches.push_back({target, is_edge(b.space), static_cast<int32_t>(at), buffer, column});
  };
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    const InstructionTraits& traits = traits_of(in);
    Bound<T> b;
    b.type = in.type;
    b.execution = &traits.execution<T>();
    b.space = in.space;
    b.edges = is_edge(in.space);
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
