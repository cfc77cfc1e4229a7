// What an instruction may read and write, and through which index array.
#pragma once

#include <string>

#include "exec/program.h"

namespace cavs {

// Bounds what a typo allocates: numbers of features and parameters, arguments of arrays.
constexpr int32_t kMostIndices = 1 << 16;

class AccessChecks {
 protected:
  explicit AccessChecks(const Program& p) : p_(p) {}

  // Throws std::invalid_argument, naming what `label_` says is being checked.
  void need(bool ok, const std::string& what) const;
  static std::string differ(const char* what, int64_t a, int64_t b);

  void check_buffer_id(int32_t id) const;
  // Columns of a row; parameters and gradients read as one row are checked against their size
  // once that is known.
  void check_columns(int32_t buffer, int64_t column, int64_t width, bool flat) const;
  // of_parents: see is_of_parents.
  void check_operand(const Operand& o, Space s, bool of_parents = false) const;
  void check_out(int32_t buffer, int64_t column, int64_t width, Space s) const;

  const Program& p_;
  std::string label_;

 private:
  void check_array(const Operand& o, const Buffer& b, Space s, const std::string& what) const;
  // Every row of `s` is one of the buffer.
  bool has_rows(const Buffer& b, Space s) const;
  // Every vertex with children has a row there.
  bool holds_parents(const Buffer& b) const;
};

}  // namespace cavs
