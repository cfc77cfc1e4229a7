// The caller's features. Index features are permuted into row order and checked once per run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/program.h"
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

// Index features as instructions read them: in row order, every value below its limit.
class IndexFeatures {
 public:
  explicit IndexFeatures(const Program& program, const std::vector<int64_t>& parameter_sizes);

  // float_rows: number of rows of each float feature that is looked up. Throws std::out_of_range
  // naming feature, value, vertex (or edge, graph) and limit.
  void bind(const Schedule& schedule, const std::vector<IntFeature>& features,
            const std::vector<int64_t>& float_rows);
  // Values of a feature for the rows of a space like `space`.
  const std::vector<int32_t>& rows(int32_t feature, Space space) const;
  // Index arrays of the spaces of vertices with a feature, and row ranges of these spaces by
  // feature.
  const std::vector<int32_t>& present(Array array, int32_t feature) const;
  const std::vector<RowRange>& present() const { return present_; }
  int64_t count(int32_t feature) const { return counts_[feature]; }
  int32_t num_features() const { return static_cast<int32_t>(counts_.size()); }

 private:
  struct Table {  // a float feature that is looked up
    int32_t feature;
    std::string label;
  };
  struct Use {
    int32_t feature;
    Space order;  // kVertexSpace, kEdgeSpace, kGraphSpace, kOneSpace or a space of vertices with a
                  // feature feature
    int64_t limit = INT32_MAX;
    std::string label;  // label of the instruction that sets the limit
    std::vector<Table> tables;
    std::vector<int32_t> values;
  };
  struct Present {  // kPresent, kPresentOrder and kPlace of a feature
    int32_t feature;
    std::vector<int32_t> rows, order, place;
  };
  Use& use(int32_t feature, Space space);
  void find_present(const Schedule& schedule, const std::vector<IntFeature>& features);
  const Present& present_of(int32_t feature) const;
  std::vector<Use> uses_;
  std::vector<Present> presents_;
  std::vector<RowRange> present_;
  std::vector<bool> counted_;
  std::vector<int64_t> counts_;
};

}  // namespace cavs
