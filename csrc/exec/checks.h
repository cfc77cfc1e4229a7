// Checks that the validation of programs and the traits of instructions share.
#pragma once

#include <string>
#include <vector>

#include "exec/instruction.h"

namespace cavs {

// Limits what a typo makes the engine allocate: numbers of features and parameters, arguments of
// arrays.
constexpr int32_t kMostIndices = 1 << 16;

// The label of an instruction in error messages: its own, else its name.
std::string label_of(const Instruction& in);

// Reads and writes of an instruction, before parameters are known. All throw std::invalid_argument,
// naming the instruction that is being checked.
class AccessChecks {
 public:
  explicit AccessChecks(const Program& p) : p_(p) {}

  const Program& program() const { return p_; }
  void need(bool ok, const std::string& what) const;
  static std::string differ(const char* what, int64_t a, int64_t b);

  void check_buffer_id(int32_t id) const;
  // Columns of a row; parameters and gradients read as one row are checked by SizeChecks.
  void check_columns(int32_t buffer, int64_t column, int64_t width, bool flat) const;
  // of_parents: see is_of_parents.
  void check_operand(const Operand& o, Space s, bool of_parents = false) const;
  // At least `least` inputs, each of them readable.
  void check_inputs(const Instruction& in, size_t least) const;
  // No input sums segments: the kernel reads stored rows.
  void check_stored_rows(const Instruction& in) const;
  void check_index_feature(const Instruction& in) const;
  const Weight& check_weight_id(const Instruction& in) const;
  void check_out(int32_t buffer, int64_t column, int64_t width, Space s) const;
  void check_out(const Instruction& in) const {
    check_out(in.out.buffer, in.out.column, in.out.width, in.space);
  }
  // The output of a sum over rows: a dense gradient, or an arena buffer in space one.
  void check_sum(const Instruction& in, int64_t elements) const;

 protected:
  const Program& p_;
  std::string label_;

 private:
  void check_array(const Operand& o, const Buffer& b, Space s, const std::string& what) const;
  // True if every row of `s` is a row of the buffer.
  bool has_rows(const Buffer& b, Space s) const;
  // True if every vertex with children has a row in the buffer.
  bool holds_parents(const Buffer& b) const;
};

// Sizes of parameters against a valid program. All throw std::invalid_argument naming the label.
class SizeChecks {
 public:
  SizeChecks(const Program& program, const std::vector<int64_t>& sizes)
      : program_(program), sizes_(sizes) {}
  // Check weights, buffers and all instructions.
  void check() const;

  const Program& program() const { return program_; }
  void need(bool ok, const std::string& label, const std::string& what) const;
  int64_t size_of(int32_t param, const std::string& label) const;
  // The buffer, if it is of a parameter or gradient, has as many elements.
  void check_elements(const std::string& label, int32_t buffer, int64_t elements) const;

 private:
  const Program& program_;
  const std::vector<int64_t>& sizes_;
};

}  // namespace cavs
