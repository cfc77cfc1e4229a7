// Addresses of the operands and results of instructions in the current batch.
#include <algorithm>

#include "cuda/executor/executor.h"
#include "cuda/memory/allocation.h"

namespace cavs::cuda {
namespace {

constexpr int32_t kFewestEven = 16;   // least rows that are read as a strided matrix
constexpr int32_t kFewestRun = 1024;  // least rows of a run that is a product of its own
constexpr size_t kMostRuns = 4;

// Address `column` bfloat16 values after the start of a row, given the address `column` values of T
// after.
template <class T>
const void* of_halves(const T* at, int32_t column) {
  return reinterpret_cast<const char*>(at - column) + column * kHalfBytes;
}

// Only children count: launches must not depend on other index arrays, which are data.
bool of_children(Array array) { return array == Array::kChild || array == Array::kNthChild; }

// The constant difference of n consecutive numbers, or 0.
int64_t even_step(const int32_t* numbers, int64_t n) {
  if (numbers[0] < 0) return 0;
  const int64_t step = n > 1 ? int64_t{numbers[1]} - numbers[0] : 1;
  for (int64_t i = 2; i < n; ++i) {
    if (int64_t{numbers[i]} - numbers[i - 1] != step) return 0;
  }
  return std::max<int64_t>(step, 0);
}

// Append the rows at which the step of the numbers changes. False if it changes too often, or a
// number is negative.
bool find_runs(const int32_t* numbers, RowRange rows, std::vector<int32_t>& begins) {
  int32_t begin = rows.begin;
  for (int32_t r = rows.begin; r < rows.end; ++r) {
    if (numbers[r] < 0) return false;
    const bool even = r < begin + 2 || int64_t{numbers[r]} - numbers[r - 1] ==
                                           int64_t{numbers[r - 1]} - numbers[r - 2];
    if (even) continue;
    if (r - begin < kFewestRun || begins.size() > 2 * kMostRuns) return false;
    begins.push_back(begin = r);
  }
  return rows.end - begin >= kFewestRun;
}

// Merge operands that are adjacent columns of the same rows.
template <class T>
void join_neighbours(std::vector<Rows<T>>& side) {
  size_t last = 0;
  for (size_t i = 1; i < side.size(); ++i) {
    Rows<T>& a = side[last];
    const Rows<T>& b = side[i];
    const int64_t bytes = a.half ? kHalfBytes : sizeof(T);
    const bool same = a.map == RowMap::kSelf && b.map == a.map && b.stride == a.stride &&
                      b.base == a.base && b.half == a.half;
    if (same && b.data == static_cast<const char*>(a.data) + a.width * bytes &&
        a.width + b.width <= a.stride) {
      a.width += b.width;
    } else {
      side[++last] = b;
    }
  }
  if (!side.empty()) side.resize(last + 1);
}

}  // namespace

template <class T>
T* Executor<T>::scratch(const ScratchOperand& operand) const {
  const DeviceMemory& memory = narrow_ ? narrow_scratch_ : scratch_;
  const std::vector<size_t>& offsets = narrow_ ? narrow_offsets_ : scratch_offsets_;
  return reinterpret_cast<T*>(memory.at(offsets[operand.buffer])) + operand.column;
}

template <class T>
int64_t Executor<T>::scratch_base(const ScratchOperand& operand, int64_t first_row) const {
  if (narrow_) return 0;
  return operand.relation == kNoRelation ? first_row : spaces_.offsets[operand.relation][first_row];
}

template <class T>
Rows<T> Executor<T>::source(size_t i, int64_t first_row) const {
  const Source<T>& s = bound_.sources[i];
  const auto [index, offsets] = arrays_.of_source(i);
  Rows<T> rows{s.data, s.stride, s.base, index, offsets, s.map, half_source_[i] >= 0, 0, s.width};
  if (const ScratchOperand& operand = source_scratch_[i]; operand.buffer >= 0) {
    rows.data = scratch(operand);
    rows.base = scratch_base(operand, first_row);
  }
  if (rows.half) rows.data = of_halves(static_cast<const T*>(rows.data), half_source_[i]);
  return rows;
}

// Operands [from, to) of a product over `rows`. Children at even steps are read as a strided
// matrix, without a gather. Few rows may have even steps by chance, which would make the commands
// of otherwise equal batches differ.
template <class T>
std::vector<Rows<T>> Executor<T>::operands(int32_t id, int32_t from, int32_t to, RowRange rows,
                                           int64_t first_row) const {
  const Bound<T>& b = bound_.instructions[id];
  std::vector<Rows<T>> found;
  for (int32_t i = from; i < to; ++i) {
    Rows<T> r = source(b.first + i, first_row);
    const Array array = program_->instructions[id].inputs[i].array;
    if (r.map == RowMap::kIndex && of_children(array) && rows.size() >= kFewestEven) {
      const int32_t* index = bound_.sources[b.first + i].index + rows.begin;
      if (const int64_t step = even_step(index, rows.size()); step > 0) {
        const int64_t before = (index[0] - r.base) * r.stride;
        r.data = static_cast<const char*>(r.data) +
                 before * static_cast<int64_t>(r.half ? kHalfBytes : sizeof(T));
        r.map = RowMap::kSelf, r.index = nullptr, r.base = rows.begin, r.stride *= step;
      }
    }
    found.push_back(r);
  }
  join_neighbours(found);
  return found;
}

// Split the rows of a product into runs whose children are at even steps, so that none is copied;
// one run if there are not enough rows. In complete trees the children of the lowest level are one
// run and all others another.
template <class T>
std::vector<RowRange> Executor<T>::even_runs(int32_t id, RowRange rows) const {
  const Bound<T>& b = bound_.instructions[id];
  std::vector<int32_t> begins{rows.begin};
  for (int32_t i = 0; i < b.count; ++i) {
    const Source<T>& s = bound_.sources[b.first + i];
    if (s.map != RowMap::kIndex || !of_children(program_->instructions[id].inputs[i].array)) {
      continue;
    }
    if (!find_runs(s.index, rows, begins)) return {rows};
  }
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  if (begins.size() > kMostRuns) return {rows};
  std::vector<RowRange> runs;
  for (const int32_t begin : begins) {
    if (!runs.empty()) runs.back().end = begin;
    runs.push_back({begin, rows.end});
  }
  return runs;
}

template <class T>
Target Executor<T>::target(int32_t id, int64_t first_row) const {
  const Bound<T>& b = bound_.instructions[id];
  Target to{b.out, b.stride, b.base, half_out_[id] >= 0};
  if (const ScratchOperand& operand = out_scratch_[id]; operand.buffer >= 0) {
    to.data = scratch(operand);
    to.base = scratch_base(operand, first_row);
  }
  if (to.half) to.data = const_cast<void*>(of_halves(static_cast<T*>(to.data), half_out_[id]));
  return to;
}

#define CAVS_INSTANTIATE(T)                                                                \
  template T* Executor<T>::scratch(const ScratchOperand&) const;                           \
  template int64_t Executor<T>::scratch_base(const ScratchOperand&, int64_t) const;        \
  template Rows<T> Executor<T>::source(size_t, int64_t) const;                             \
  template std::vector<Rows<T>> Executor<T>::operands(int32_t, int32_t, int32_t, RowRange, \
                                                      int64_t) const;                      \
  template std::vector<RowRange> Executor<T>::even_runs(int32_t, RowRange) const;          \
  template Target Executor<T>::target(int32_t, int64_t) const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
