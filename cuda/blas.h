// Products by cuBLASLt, resolved at run time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "device.h"

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
  Blas(std::shared_ptr<Device> device, const std::string& library, Precision precision, bool wide);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // c [m, n] (+)= a [m, k] b [k, n] on the device's stream; false, doing nothing, where the library
  // has no algorithm for it. half: c is stored in bfloat16.
  bool multiply(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, Matrix c, bool half,
                bool accumulate);

  size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  struct Entries;
  struct Algorithm {
    uint64_t words[8];
  };
  struct Plan {
    Handle description = nullptr;
    Handle a = nullptr, b = nullptr, c = nullptr;
    Algorithm algorithm{};
    bool found = false;
    uint64_t number = 0;  // no two have the same
  };
  struct Product;
  // Sizes, strides, what is transposed or stored in bfloat16, and how far addresses are aligned.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int, int>;

  const Plan& plan(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b,
                   const Matrix& c, bool half);
  Plan make(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b, const Matrix& c,
            bool half) const;
  void drop(Plan& plan) const;
  static void issue(const void* product, int lane, Handle stream);
  void check(int status, const char* call) const;

  std::shared_ptr<Device> device_;
  std::unique_ptr<Entries> entries_;
  Precision precision_;
  bool wide_;  // float64
  Handle handle_ = nullptr;
  DeviceMemory workspace_;  // a part for each lane
  std::map<Key, Plan> plans_;
  uint64_t made_ = 0;  // plans
};

}  // namespace cavs::cuda
