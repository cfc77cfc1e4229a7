// Binding: index features in row order, and the addresses of the instructions of a program in a
// batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/bound.h"
#include "exec/plan.h"
#include "schedule/schedule.h"

namespace cavs {

template <class T>
struct FloatFeature {
  const T* data = nullptr;
  int64_t rows = 0, width = 0;
};
struct IntFeature {
  const int32_t* data = nullptr;
  int64_t rows = 0;
};

// Index features as instructions read them: in row order, every value below its limit. They are
// permuted and checked once per run.
class IndexFeatures {
 public:
  explicit IndexFeatures(const Program& program, const std::vector<int64_t>& parameter_sizes);

  // float_rows: number of rows of each float feature that is looked up. Throws std::out_of_range
  // naming feature, value, vertex (or edge, graph) and limit.
  void bind(const Schedule& schedule, const std::vector<IntFeature>& features,
            const std::vector<int64_t>& float_rows);
  // Values of a feature for the rows of a space like `space`.
  const std::vector<int32_t>& rows(int32_t feature, Space space) const;
  // Index arrays of the spaces that features select, and row ranges of these spaces.
  const std::vector<int32_t>& selected(Array array, int32_t feature) const;
  const SelectedRows& selected() const { return ranges_; }
  int64_t count(int32_t feature) const { return counts_[feature]; }
  int32_t num_features() const { return static_cast<int32_t>(counts_.size()); }

 private:
  // Rows of the structure that an int feature belongs to.
  RowRange rows_of(const Schedule& schedule, int32_t feature) const {
    return schedule.rows_of(structures_[feature]);
  }
  struct Table {  // a float feature that is looked up
    int32_t feature;
    std::string label;
  };
  struct Use {
    int32_t feature;
    Space order;  // kVertexSpace, kEdgeSpace, kGraphSpace, kOneSpace or one that a feature selects
    int64_t limit = INT32_MAX;
    std::string label;  // label of the instruction that sets the limit
    std::vector<Table> tables;
    std::vector<int32_t> values;
  };
  // kPresent, kPresentOrder and kPlace of a space of present vertices. place of one of distinct
  // values is kDistinct, and order the first vertex that has each.
  struct Selected {
    Space space;
    std::vector<int32_t> rows, order, place;
    std::vector<int32_t> place_of;  // place of each distinct value; -1 between batches
  };
  Use& use(int32_t feature, Space space);
  const Selected& selected(Space space) const;
  void select(const Schedule& schedule, const std::vector<IntFeature>& features);
  void select_distinct(const Schedule& schedule, const int32_t* values, Selected& found) const;
  std::vector<Use> uses_;
  std::vector<Selected> selected_;
  SelectedRows ranges_;
  std::vector<int32_t> structures_;  // structure of each int feature
  std::vector<bool> counted_;
  std::vector<int64_t> counts_;
};

// Addresses of everything that instructions access in a batch.
template <class T>
struct Addresses {
  T* arena;
  const std::vector<Lifetime>* lifetimes;
  const std::vector<T*>* params;
  const std::vector<T*>* grads;
  const std::vector<FloatFeature<T>>* features;
  const T* ones;
  const T* counts;
  const std::vector<const T*>* packed;
  const Schedule* schedule;
  const Spaces* spaces;
  const IndexFeatures* index_features;
  uint64_t seed, step;
};

// Bind everything that does not depend on the batch.
template <class T>
void bind_shapes(const Program& program, const Analysis& analysis, BoundProgram<T>& bound,
                 std::vector<Patch>& patches);
// Throws std::invalid_argument if a float feature has the wrong size.
template <class T>
void bind_addresses(const Program& program, const Addresses<T>& at, BoundProgram<T>& bound);

}  // namespace cavs
