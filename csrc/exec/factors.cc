#include "exec/factors.h"

#include <algorithm>

namespace cavs {

bool make_factors(const Program& program, const Analysis& analysis, int32_t param, int64_t size,
                  Factors& out) {
  out.param = param;
  for (const Stage& stage : program.stages) {
    std::vector<int32_t> ids = stage.body;
    for (const std::vector<int32_t>& body : stage.bodies) {
      ids.insert(ids.end(), body.begin(), body.end());
    }
    for (int32_t id : ids) {
      const std::vector<int32_t>& written = analysis.gradients_of_instruction[id];
      if (std::find(written.begin(), written.end(), param) == written.end()) continue;
      const Instruction& in = program.instructions[id];
      if (stage.type == StageType::kLoop || !is_whole_product(program, in, size)) return false;
      out.n = in.out.width;
      out.k = size / out.n;
      out.instructions.push_back(id);
    }
  }
  return !out.instructions.empty();
}

template <class T>
void count_factor_rows(Factors& f, const BoundProgram<T>& bound, const Spaces& spaces) {
  f.first_row.clear();
  f.rows = 0;
  for (int32_t id : f.instructions) {
    f.first_row.push_back(f.rows);
    f.rows += spaces.rows(bound.instructions[id].space).size();
  }
}

template <class T>
void bind_factors(Factors& f, const BoundProgram<T>& bound, const Spaces& spaces) {
  count_factor_rows(f, bound, spaces);
  f.left.reserve(f.rows * f.k * sizeof(T));
  f.right.reserve(f.rows * f.n * sizeof(T));
}

template <class T>
void copy_factors(const Factors& f, int32_t instruction, const Bound<T>& b,
                  const Source<T>* sources, RowRange rows, const Kernels<T>& kernels) {
  const auto at = std::find(f.instructions.begin(), f.instructions.end(), instruction);
  const int64_t first = f.first_row[at - f.instructions.begin()];
  T* left = f.left.as<T>() + first * f.k;
  T* right = f.right.as<T>() + first * f.n;
  for (int32_t i = 0; i < b.count; ++i) {
    T*& out = i < b.split ? left : right;
    kernels.copy_rows(sources[i], rows.begin, rows.end, out, i < b.split ? f.k : f.n, rows.begin);
    out += sources[i].width;
  }
}

#define CAVS_INSTANTIATE(T)                                                                        \
  template void bind_factors(Factors&, const BoundProgram<T>&, const Spaces&);                     \
  template void count_factor_rows(Factors&, const BoundProgram<T>&, const Spaces&);                \
  template void copy_factors(const Factors&, int32_t, const Bound<T>&, const Source<T>*, RowRange, \
                             const Kernels<T>&);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
