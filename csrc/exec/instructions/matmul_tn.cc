// matmul_tn: out[k, n] (+)= sum over rows r of inputs[0, split)(r)^T inputs[split, ..)(r).
#include <algorithm>
#include <utility>

#include "exec/bind.h"
#include "exec/checks.h"
#include "exec/cost.h"
#include "exec/thread_state.h"

namespace cavs {
namespace {

ProductShape shape(const Program&, const Instruction& in) {
  return {width_of(in, 0, in.split), width_of(in, in.split, in.inputs.size())};
}

void validate(const AccessChecks& c, const Instruction& in) {
  c.check_inputs(in, 2);
  c.need(
      in.split > 0 && in.split < static_cast<int32_t>(in.inputs.size()),
      "split " + std::to_string(in.split) + " of " + std::to_string(in.inputs.size()) + " inputs");
  const auto [k, n] = shape(c.program(), in);
  c.need(in.out.width == n, c.differ("columns of output and product differ", in.out.width, n));
  c.check_sum(in, k * n);
}

void validate_sizes(const SizeChecks& c, const Instruction& in) {
  const std::string label = label_of(in);
  const Buffer& b = c.program().buffers[in.out.buffer];
  const int64_t stride = b.role == Role::kGrad ? b.width : in.out.width;
  c.need(
      in.out.width <= stride, label,
      "writes " + std::to_string(in.out.width) + " columns into rows of " + std::to_string(stride));
  const int64_t k = width_of(in, 0, in.split);
  c.check_elements(label, in.out.buffer, in.out.column + (k - 1) * stride + in.out.width);
}

// Narrow results still take whole vectors, and each row is copied first.
double cost(const Instruction& in) {
  const auto k = static_cast<double>(width_of(in, 0, in.split));
  const auto n = static_cast<double>(width_of(in, in.split, in.inputs.size()));
  return k * std::max(n, kNarrow) * kMulAddNs + (k + n) * kElementNs;
}

Traffic traffic(const TrafficContext& context, const Instruction& in) {
  const auto [k, n] = shape(context.program, in);
  return {2.0 * static_cast<double>(context.rows) * static_cast<double>(k * n), k * n};
}

template <class T>
void bind(const Program& program, const Instruction& in, const Addresses<T>&, Bound<T>& b) {
  if (program.buffers[in.out.buffer].role != Role::kGrad) b.stride = in.out.width;
}

// Add columns [begin, end) of sources side by side.
template <class T>
void add_columns(const Source<T>* sources, int32_t count, int64_t begin, int64_t end,
                 std::vector<Source<T>>& out) {
  int64_t at = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t from = std::max(begin - at, int64_t{0});
    const int64_t to = std::min(end - at, int64_t{sources[i].width});
    if (from < to) {
      out.push_back(sources[i]);
      out.back().data += from;
      out.back().width = static_cast<int32_t>(to - from);
    }
    at += sources[i].width;
  }
}

template <class T>
void add_zeros(const T* zeros, int32_t columns, std::vector<Source<T>>& out) {
  if (columns <= 0) return;
  Source<T>& source = out.emplace_back();
  source.data = zeros;
  source.map = RowMap::kOne;
  source.width = columns;
}

// Columns of the left operand, and of both.
template <class T>
std::pair<int64_t, int64_t> widths_of(const Bound<T>& b, const Source<T>* sources) {
  int64_t left = 0, both = 0;
  for (int32_t i = 0; i < b.count; ++i) {
    if (i == b.split) left = both;
    both += sources[i].width;
  }
  return {left, both};
}

// Rows of both operands side by side, as DeferRows stores them.
template <class T>
T* deferred_rows(const ThreadState<T>& thread, int32_t id) {
  return thread.run.deferred.template as<T>() + thread.run.plan->deferred_at[id];
}

template <class T>
void defer(ThreadState<T>& thread, const DeferRows& item) {
  const Bound<T>& b = thread.bound.instructions[item.instruction];
  const Source<T>* const sources = thread.sources(b);
  const int64_t width = widths_of(b, sources).second;
  T* out = deferred_rows(thread, item.instruction) + item.before * width;
  for (int32_t i = 0; i < b.count; ++i) {
    thread.kernels().copy_rows(sources[i], item.rows.begin, item.rows.end, out, width,
                               item.rows.begin);
    out += sources[i].width;
  }
}

// Both operands of a term.
template <class T>
struct Operands {
  const Source<T>* left;
  int32_t num_left;
  const Source<T>* right;
  int32_t num_right;
};

template <class T>
void sum_cell(ThreadState<T>& thread, const SumCell& item) {
  const Product& product = thread.run.analysis->products[item.instruction];
  const Product::Cell& cell = thread.run.plan->cells[item.cell];
  T* out = nullptr;
  thread.cut.clear();
  thread.pairs.clear();
  thread.terms.clear();
  for (size_t t = 0; t < product.terms.size(); ++t) {
    const int32_t id = product.terms[t];
    const Bound<T>& b = thread.bound.instructions[id];
    const Source<T>* const sources = thread.sources(b);
    const RowRange rows = thread.rows_of(item.extent, id);
    if (const int32_t f = thread.run.factors_of_instruction[id]; f >= 0) {
      const bool first = item.rows.begin == 0 && item.columns.begin == 0;  // item of this product
      if (first) copy_factors(thread.run.factors[f], id, b, sources, rows, thread.kernels());
      continue;
    }
    Operands<T> operands{sources, b.split, sources + b.split, b.count - b.split};
    Source<T> left, right;
    if (item.extent.over == SumExtent::Over::kDeferred) {
      const auto [k, width] = widths_of(b, sources);
      left.data = deferred_rows(thread, id);
      right.data = left.data + k;
      left.stride = right.stride = width;
      left.width = static_cast<int32_t>(k);
      right.width = static_cast<int32_t>(width - k);
      operands = {&left, 1, &right, 1};
    }
    const Product::Cell& reach = product.reach[t];
    if (reach.columns_of(cell) == 0) continue;
    out = b.out + (item.rows.begin - reach.row) * b.stride - reach.column + cell.column;
    if (rows.size() == 0) continue;
    // `cut` never grows beyond its capacity, see Worker::refresh.
    const Source<T>* const first = thread.cut.data() + thread.cut.size();
    add_columns(operands.left, operands.num_left, item.rows.begin - reach.row,
                item.rows.end - reach.row, thread.cut);
    const Source<T>* const second = thread.cut.data() + thread.cut.size();
    add_zeros(thread.run.zeros, reach.column - cell.column, thread.cut);
    add_columns(operands.right, operands.num_right, cell.column - reach.column,
                cell.column_end - reach.column, thread.cut);
    add_zeros(thread.run.zeros, cell.column_end - reach.column_end, thread.cut);
    const Source<T>* const end = thread.cut.data() + thread.cut.size();
    thread.pairs.push_back({first, static_cast<int32_t>(second - first), second,
                            static_cast<int32_t>(end - second), rows.begin, rows.end});
    thread.terms.push_back(id);
  }
  if (out == nullptr) return;  // all terms are kept as factors
  const Bound<T>& b = thread.bound.instructions[item.instruction];
  const int64_t n0 = item.columns.begin - cell.column, n1 = item.columns.end - cell.column;
  const int64_t k = item.rows.end - item.rows.begin;
  if (thread.pairs.empty()) {
    for (int64_t i = 0; i < k && !b.accumulate; ++i) {
      std::fill(out + i * b.stride + n0, out + i * b.stride + n1, T(0));
    }
    return;
  }
  thread.kernels().matmul_tn(thread.pairs.data(), static_cast<int32_t>(thread.pairs.size()), k,
                             product.most, cell.columns(), n0, n1, out, b.stride, b.accumulate,
                             thread.kernel_memory());
}

template <class T>
void run(ThreadState<T>& thread, const Item& item) {
  if (const auto* rows = std::get_if<DeferRows>(&item)) return defer(thread, *rows);
  sum_cell(thread, std::get<SumCell>(item));
}

}  // namespace

constinit const InstructionTraits instructions::matmul_tn = {.cut = Cut::kCells,
                                                             .validate = validate,
                                                             .validate_sizes = validate_sizes,
                                                             .cost = cost,
                                                             .shape = shape,
                                                             .traffic = traffic,
                                                             .float32 = {.bind = bind, .sum = run},
                                                             .float64 = {.bind = bind, .sum = run}};

}  // namespace cavs
