// Checks of the instructions that run a whole LSTM.
#pragma once

#include "exec/validate_access.h"

namespace cavs {

class RecurrenceChecks : AccessChecks {
 public:
  explicit RecurrenceChecks(const Program& p) : AccessChecks(p) {}
  // Throws std::invalid_argument naming `label`. Weights have been checked by themselves.
  void check(const Instruction& in, const std::string& label);

 private:
  void check_rows(const Instruction& in, size_t inputs) const;
  void check_weight(const Instruction& in) const;
  // The kLstm of the same number.
  const Instruction& forward_of(const Instruction& in) const;
};

}  // namespace cavs
