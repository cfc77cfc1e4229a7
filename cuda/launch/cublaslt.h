// Matrix products by cuBLASLt, resolved at run time.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cuda/driver/device.h"
#include "cuda/launch/lru_cache.h"
#include "cuda/memory/allocation.h"

namespace cavs::cuda {

// Rounding of the operands of float32 products; sums are float32 in any case. kBfloat16: operands
// are stored in bfloat16, and so are results on demand.
enum class Precision { kFloat32, kTf32, kBfloat16 };

// A row-major matrix, read as its transpose if `transposed`.
struct Matrix {
  Address at;
  int64_t ld;
  bool transposed = false;
};

class CublasLt {
 public:
  // deterministic: only algorithms that add in one sequence, see docs/cuda.md.
  CublasLt(std::shared_ptr<Device> device, const std::string& library, Precision precision,
           bool wide, bool deterministic);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // c [m, n] (+)= a [m, k] b [k, n] on the current lane. Returns false, and does nothing, if the
  // library has no algorithm for it. half: c is stored in bfloat16. m is the number of rows, which
  // differs between batches; for a transposed `a` it is k.
  bool multiply(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, Matrix c, bool half,
                bool accumulate);

  size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  struct Entries;
  struct Heuristic;
  struct Algorithm {
    uint64_t words[8];
  };
  // The key of a plan: sizes, strides, layouts, and the alignment of the addresses.
  struct Shape {
    int64_t m, n, k;
    int64_t ld[3];
    bool transposed_a, transposed_b, half;
    uint32_t aligned[3];
    auto operator<=>(const Shape&) const = default;
  };
  // Descriptors of a shape, owned.
  class Description;
  struct Plan {
    Shape shape;
    std::unique_ptr<const Description> description;
    std::optional<Algorithm> algorithm;  // nullopt: the library has none
    uint64_t number;                     // unique
    bool asked = false;                  // a second time, after a refusal
  };
  struct Product;

  // Throws DeviceFault naming the call, or an earlier kernel fault.
  void check(int status, const char* call) const;
  Plan& plan(const Shape& shape);
  std::optional<Algorithm> algorithm(const Shape& shape, const Description& description);
  std::optional<Algorithm> ask(const Shape& shape, const Description& description) const;
  bool fits(const Algorithm& algorithm, const Description& description) const;
  static void issue(const void* product, int lane, Handle stream);

  std::shared_ptr<Device> device_;
  std::unique_ptr<Entries> entries_;
  Precision precision_;
  bool wide_;  // the values are float64
  bool deterministic_;
  Handle handle_ = nullptr;
  DeviceMemory workspace_;  // one part per lane
  LruCache<Shape, Plan> plans_;
  uint64_t num_plans_ = 0;  // number of plans so far
  // By shape with the largest number of rows that shares an algorithm.
  LruCache<Shape, std::optional<Algorithm>> algorithms_;
};

}  // namespace cavs::cuda
