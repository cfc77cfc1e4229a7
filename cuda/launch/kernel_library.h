// The kernels of cuda/kernels, loaded, each with the grid it wants.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/kernels/arguments.h"
#include "cuda/launch/cublaslt.h"

namespace cavs::cuda {

// Rows [begin, end) of an instruction's result; row r stands (r - base) * stride values behind
// data, which is of bfloat16 where `half`.
struct Target {
  void* data;
  int64_t stride, base;
  bool half = false;
};

template <class T>
class Library {
 public:
  // images: a cubin for each file of kernels, by its name. blas: the path of cuBLASLt; without it,
  // and for few rows, products are done by our own kernels. precision: of float32 products; images
  // for kBfloat16 are compiled with CAVS_HALF. deterministic: as of Blas.
  Library(std::shared_ptr<Device> device,
          const std::unordered_map<std::string, std::string>& images, Precision precision,
          const std::string& blas, bool deterministic);

  // Bytes of a value of packed weights.
  size_t packed_bytes() const { return half_ ? kHalfBytes : sizeof(T); }

  // What products need of the device beside their operands.
  size_t workspace_bytes() const;

  void copy_rows(const Rows<T>& in, int begin, int end, Target out) const;
  void copy_rows(const Rows<T>* in, int count, int begin, int end, Target out) const;
  void segment_max(const Rows<T>& in, int begin, int end, Target out) const;
  void cross_entropy(const Rows<T>& logits, const int* label, int begin, int end,
                     Target loss) const;
  // slope: a number a row, by which its gradient is multiplied; without data it is 1.
  void cross_entropy_grad(const Rows<T>& logits, const Rows<T>& slope, const int* label, int begin,
                          int end, Target grad) const;
  // At most kMostSources sums over the same rows.
  void sum_rows(const Rows<T>* in, const Sum<T>* out, int count, int begin, int end) const;
  void matmul(const Rows<T>* sources, int count, int begin, int end, const void* weight, int n,
              Target out, bool accumulate) const;
  void matmul_tn(const Rows<T>* a, int num_a, const Rows<T>* b, int num_b, int begin, int end,
                 T* out, int64_t out_stride, bool accumulate) const;
  void pack(const Piece<T>* pieces, int count) const;
  // Adds pieces as they stand after pack() into where they come from; both are of T.
  void unpack(const Piece<T>* pieces, int count) const;
  void lookup_grad(const Rows<T>& values, const int* offsets, const int* rows, const int* slots,
                   int count, T* out, bool first) const;
  void square(const Stretch<T>* stretches, int count, double* partial) const;
  void judge(const double* partial, int count, const T* loss, double max_norm,
             const Outcome* before, Outcome* outcome) const;
  void update(const Stretch<T>* stretches, int count, const Optimizer& optimizer,
              const Outcome* outcome) const;

 private:
  void matmul_own(const Rows<T>* sources, int count, int begin, int end, const void* weight, int n,
                  Target out, bool accumulate) const;
  void matmul_tn_own(const Rows<T>* a, int num_a, const Rows<T>* b, int num_b, int begin, int end,
                     T* out, int64_t out_stride, bool accumulate) const;
  bool multiply_rows(const Rows<T>* sources, int count, int begin, int end, const void* weight,
                     int n, Target out, bool accumulate) const;
  Rows<T> side_by_side(const Rows<T>* sources, int count, int begin, int end) const;
  int together(const Rows<T>* sources, int count, bool half) const;
  bool lies_as_matrix(const Rows<T>& source) const;
  int64_t copied_stride(int64_t width) const;
  size_t copied_bytes(const Rows<T>& source, int64_t rows) const;
  Matrix matrix(const Rows<T>& source, int begin, int end, Address place) const;
  const void* rows_behind(const void* weight, int64_t k, int64_t n) const;
  Grid rows_grid(int64_t rows, int each) const;
  Grid vectors_grid(int64_t rows, int64_t width) const;
  int parts_of(int64_t rows, int64_t tiles, int blocks) const;
  int parts_of_depth(int64_t k, int64_t tiles) const;
  T* room_for_parts(int parts, int64_t n) const;
  void sum_parts(const T* partial, int parts, int64_t n, T* out, int64_t width, int64_t stride,
                 int accumulate) const;
  Address place_of_row(const Target& out, int64_t row) const;

  std::shared_ptr<Device> device_;
  const bool half_;
  std::vector<std::unique_ptr<Module>> modules_;
  // Of each lane: sums in parts, operands put together for cuBLASLt, how many parts have come.
  struct Room {
    explicit Room(const std::shared_ptr<Device>& device)
        : partial(device), gathered(device), other(device), arrived(device) {}
    DeviceMemory partial, gathered, other, arrived;
  };
  Room& room() const { return *rooms_[device_->lane()]; }
  std::vector<std::unique_ptr<Room>> rooms_;
  std::unique_ptr<Blas> blas_;
  Handle copy_rows_, segment_max_, cross_entropy_, cross_entropy_grad_, sum_rows_,
      sum_parts_of_rows_, sum_parts_, matmul_, matmul_16_, matmul_tn_, pack_, unpack_, lookup_grad_,
      square_, judge_, update_;
};

}  // namespace cavs::cuda
