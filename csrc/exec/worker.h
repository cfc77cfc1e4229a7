// Runs items of a plan on one thread.
#pragma once

#include <chrono>
#include <vector>

#include "exec/thread_state.h"

namespace cavs {

template <class T>
class Worker {
 public:
  explicit Worker(const RunContext<T>& context) : state_(context) {}
  // Take over the addresses of the batch; before each run.
  void refresh();
  void run(const Item& item);

  struct Profile {
    double seconds = 0;
    int64_t calls = 0;
  };
  std::vector<Profile> profile;  // per instruction, while profiling

 private:
  const RunContext<T>& context() const { return state_.run; }
  void patch(const Bound<T>& b, T* scratch, int64_t first_row);
  T* shared_scratch(int32_t instruction) const {
    return context().shared_scratch.template as<T>() + context().shared_at[instruction] / sizeof(T);
  }
  void run_body(const RunBody& item);
  void run_rows(int32_t id, RowRange rows);
  void copy_outputs(const Body& body, RowRange rows, const T* scratch);
  void pack(const PackWeight& item);
  void zero(const ZeroGradient& item);
  template <class F>
  void timed(int32_t id, F&& f);
  void add_product_time(int32_t id, double seconds);

  ThreadState<T> state_;
  std::vector<WeightPart<T>> parts_;  // parts of the weight that is packed
};

// Elements of scratch that the kernels need for any instruction of the program.
template <class T>
size_t kernel_scratch(const BoundProgram<T>& bound, const Analysis& analysis,
                      const Kernels<T>& kernels);

}  // namespace cavs
