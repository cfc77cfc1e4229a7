// One thread's part of a run: its copy of the bound instructions, its scratch, its clock.
#pragma once

#include <chrono>
#include <vector>

#include "exec/arena.h"
#include "exec/bound.h"
#include "exec/factors.h"
#include "exec/plan.h"
#include "exec/tables.h"

namespace cavs {

// What the threads of a run share and do not change.
template <class T>
struct RunContext {
  const Program* program;
  const Analysis* analysis;
  const Kernels<T>* kernels;
  const Schedule* schedule;
  const Spaces* spaces;
  const BoundProgram<T>* bound;
  const Plan* plan;
  const T* zeros;  // as many as a gradient of a product has columns
  const std::vector<Patch>* patches;
  std::vector<size_t> scratch_offsets;  // of each buffer, in bytes
  size_t scratch_bytes = 0;
  Memory shared_scratch;          // of tasks that all threads work on
  std::vector<size_t> shared_at;  // of each instruction, in bytes: where its body's begins
  size_t kernel_elements = 0;     // scratch of the kernels
  std::vector<Memory> packed;     // of each weight
  Memory staged;                  // rows of products that wait
  std::vector<const T*> packed_data;
  std::vector<T*> params, grads;  // grads: null without a dense gradient
  std::vector<int64_t> sizes;
  std::vector<Table> tables;
  std::vector<Factors> factors;
  std::vector<int32_t> factors_of_instruction;  // or -1
  bool profiling = false;
};

template <class T>
class Worker {
 public:
  explicit Worker(const RunContext<T>& context) : c_(context) {}
  // Before a run: takes over the addresses of the batch.
  void refresh();
  void run(const Item& item);

  struct Profile {
    double seconds = 0;
    int64_t calls = 0;
  };
  std::vector<Profile> profile;  // of each instruction, while profiling

 private:
  void patch(const Bound<T>& b, T* scratch, int64_t first_row);
  T* shared_scratch(int32_t instruction) const {
    return c_.shared_scratch.template as<T>() + c_.shared_at[instruction] / sizeof(T);
  }
  void execute(int32_t id, int64_t r0, int64_t r1);
  void run_rows(int32_t id, int64_t r0, int64_t r1);
  void run_panels(const Item& item);
  void multiply(const Bound<T>& b, int64_t r0, int64_t r1, int64_t p0, int64_t p1);
  void run_transposed(const Item& item);
  void stage(const Item& item);
  void run_columns(const Item& item);
  void run_slots(const Item& item);
  void pad(int32_t columns);
  void note(const Item& item, double seconds);
  RowRange rows_of(const Item& sum, int32_t term) const;
  void pack(const Item& item);
  int64_t panels(int64_t n) const { return (n + c_.kernels->panel - 1) / c_.kernels->panel; }

  const RunContext<T>& c_;
  BoundProgram<T> own_;
  Memory scratch_, kernel_scratch_;
  std::vector<Source<T>> cut_;  // of the operands of a product
  std::vector<RowPairs<T>> pairs_;
  std::vector<int32_t> summed_;       // the terms of a product that has just run, for reports
  std::vector<WeightPart<T>> parts_;  // of the weight that is packed
};

// Scratch elements the kernels need for any instruction of the program.
template <class T>
size_t kernel_scratch(const BoundProgram<T>& bound, const Analysis& analysis,
                      const Kernels<T>& kernels);

}  // namespace cavs
