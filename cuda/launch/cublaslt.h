// Products by cuBLASLt, resolved at run time.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cuda/driver/device.h"
#include "cuda/launch/lru_cache.h"

namespace cavs::cuda {

// How products of float32 values are rounded; sums are float32 in any case. kBfloat16: operands are
// stored in bfloat16, results too where they say so.
enum class Precision { kFloat32, kTf32, kBfloat16 };

// A row-major matrix; `transposed`: it is read as its transpose.
struct Matrix {
  Address at;
  int64_t ld;
  bool transposed = false;
};

class Blas {
 public:
  // deterministic: every sum is made in one sequence, see docs/cuda.md.
  Blas(std::shared_ptr<Device> device, const std::string& library, Precision precision, bool wide,
       bool deterministic);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // c [m, n] (+)= a [m, k] b [k, n] on the device's stream; false, doing nothing, where the library
  // has no algorithm for it. half: c is stored in bfloat16. Rows, which differ from batch to batch,
  // are m; of a transposed `a` they are k.
  bool multiply(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, Matrix c, bool half,
                bool accumulate);

  size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  struct Entries;
  struct Heuristic;
  struct Algorithm {
    uint64_t words[8];
  };
  // Sizes, strides, what is transposed or stored in bfloat16, and how far addresses are aligned.
  struct Shape {
    int64_t m, n, k;
    int64_t ld[3];
    bool transposed_a, transposed_b, half;
    uint32_t aligned[3];
    auto operator<=>(const Shape&) const = default;
  };
  // What the library is told of a shape; handles are dropped with it.
  class Description;
  struct Plan {
    Shape shape;
    std::unique_ptr<const Description> description;
    std::optional<Algorithm> algorithm;  // none: the library has none
    uint64_t number;                     // no two have the same
    bool asked = false;                  // again, when the algorithm was refused
  };
  struct Product;

  // Throws DeviceFault naming the call, or the fault of a kernel before it.
  void check(int status, const char* call) const;
  Plan& plan(const Shape& shape);
  std::optional<Algorithm> algorithm(const Shape& shape, const Description& description);
  std::optional<Algorithm> ask(const Shape& shape, const Description& description) const;
  bool fits(const Algorithm& algorithm, const Description& description) const;
  static void issue(const void* product, int lane, Handle stream);

  std::shared_ptr<Device> device_;
  std::unique_ptr<Entries> entries_;
  Precision precision_;
  bool wide_;  // float64
  bool deterministic_;
  Handle handle_ = nullptr;
  DeviceMemory workspace_;  // a part for each lane
  Recent<Shape, Plan> plans_;
  uint64_t made_ = 0;  // of them
  // Of shapes whose rows are the most that share an algorithm.
  Recent<Shape, std::optional<Algorithm>> algorithms_;
};

}  // namespace cavs::cuda
