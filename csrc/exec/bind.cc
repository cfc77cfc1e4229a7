#include "exec/bind.h"

#include <stdexcept>
#include <string>

#include "exec/spaces.h"

namespace cavs {
namespace {

// Of one array that holds offsets and then what they lead to.
IndexArrays segments(const int32_t* offsets, size_t count) {
  return {{offsets + count + 1, static_cast<size_t>(offsets[count])}, {offsets, count + 1}};
}

// Rows the caller's feature must have when read through `o`; -1: any.
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
    place(o.buffer, data, s.stride, s.base);
    s.data = data;
    switch (b.role) {
      case Role::kOnes:  // stride 0: a segment sum over it counts the segment
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

  void place(int32_t buffer, T*& data, int64_t& stride, int64_t& base) const {
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
               " (read by " + (o.array == Array::kNone ? "row" : array_name(o.array)) + ")");
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
  const auto patch = [&](Patch::Place place, size_t at, int32_t buffer, int32_t column) {
    const Buffer& b = p.buffers[buffer];
    if (b.role != Role::kScratch) return;
    patches.push_back({place, is_edge(b.space), static_cast<int32_t>(at), buffer, column});
  };
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    Bound<T> b;
    b.kind = in.kind;
    b.space = in.space;
    b.edges = is_edge(in.space);
    b.accumulate = in.accumulate && !analysis.overwrites[i];
    b.split = in.split;
    b.first_patch = static_cast<int32_t>(patches.size());
    if (in.kind == InstructionKind::kMap) {
      b.first = static_cast<int32_t>(bound.loads.size());
      b.count = static_cast<int32_t>(in.loads.size());
      b.first_store = static_cast<int32_t>(bound.stores.size());
      for (const MapLoadSpec& l : in.loads) {
        patch(Patch::Place::kLoad, bound.loads.size(), l.operand.buffer, l.operand.column);
        bound.loads.push_back({{}, l.outer_stride, l.scalar, is_of_parents(in, l.operand)});
      }
      for (const MapStoreSpec& s : in.stores) {
        patch(Patch::Place::kStore, bound.stores.size(), s.buffer, s.column);
        bound.stores.push_back({nullptr, 0, 0, s.outer_stride, s.mode, s.reg});
      }
      b.map.ops = in.ops.data();
      b.map.num_loads = b.count;
      b.map.num_ops = static_cast<int32_t>(in.ops.size());
      b.map.num_stores = static_cast<int32_t>(in.stores.size());
      b.map.num_registers = in.registers;
      b.map.outer = in.outer;
      b.map.inner = in.inner;
    } else {
      b.first = static_cast<int32_t>(bound.sources.size());
      b.count = static_cast<int32_t>(in.inputs.size());
      for (size_t j = 0; j < in.inputs.size(); ++j) {
        const Operand& o = in.inputs[j];
        patch(Patch::Place::kSource, bound.sources.size(), o.buffer, o.column);
        bound.sources.emplace_back();
        (in.kind == InstructionKind::kMatmulTN && static_cast<int32_t>(j) >= in.split ? b.n
                                                                                      : b.k) +=
            o.width;
      }
      if (in.kind == InstructionKind::kMatmul) b.n = p.weights[in.weight].n;
      if (in.kind != InstructionKind::kLookupGrad) {
        patch(Patch::Place::kOut, i, in.out.buffer, in.out.column);
      }
    }
    b.end_patch = static_cast<int32_t>(patches.size());
    bound.instructions.push_back(b);
  }
}

template <class T>
void bind_addresses(const Program& p, const Addresses<T>& at, BoundProgram<T>& bound) {
  const Binder<T> binder(p, at);
  const Schedule& s = *at.schedule;
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    Bound<T>& b = bound.instructions[i];
    if (in.kind == InstructionKind::kMap) {
      for (size_t j = 0; j < in.loads.size(); ++j) {
        bound.loads[b.first + j].source = binder.source(in, in.loads[j].operand);
      }
      for (size_t j = 0; j < in.stores.size(); ++j) {
        MapStore<T>& store = bound.stores[b.first_store + j];
        binder.place(in.stores[j].buffer, store.data, store.stride, store.base);
        if (store.data != nullptr) store.data += in.stores[j].column;
      }
      b.map.segments = in.outward ? s.out_offsets.data() : nullptr;
      b.map.seed = at.seed;
      b.map.step = at.step;
      b.map.row_ids =
          is_vertex(in.space) ? s.order.data()
          : is_edge(in.space) ? s.edge_order.data()
          : is_present(in.space)
              ? at.index_features->present(Array::kPresentOrder, feature_of(in.space)).data()
              : nullptr;
      continue;
    }
    for (size_t j = 0; j < in.inputs.size(); ++j) {
      bound.sources[b.first + j] = binder.source(in, in.inputs[j]);
    }
    if (in.kind == InstructionKind::kLookupGrad || in.kind == InstructionKind::kCrossEntropy ||
        in.kind == InstructionKind::kCrossEntropyGrad) {
      b.index = at.index_features->rows(in.argument, in.space).data();
    }
    if (in.kind == InstructionKind::kLookupGrad) continue;
    binder.place(in.out.buffer, b.out, b.stride, b.base);
    if (b.out != nullptr) b.out += in.out.column;
    if (in.kind == InstructionKind::kMatmul) b.packed = (*at.packed)[in.weight];
    if (in.kind == InstructionKind::kMatmulTN && p.buffers[in.out.buffer].role != Role::kGrad) {
      b.stride = in.out.width;
    }
  }
}

template void bind_shapes(const Program&, const Analysis&, BoundProgram<float>&,
                          std::vector<Patch>&);
template void bind_shapes(const Program&, const Analysis&, BoundProgram<double>&,
                          std::vector<Patch>&);
template void bind_addresses(const Program&, const Addresses<float>&, BoundProgram<float>&);
template void bind_addresses(const Program&, const Addresses<double>&, BoundProgram<double>&);

}  // namespace cavs
