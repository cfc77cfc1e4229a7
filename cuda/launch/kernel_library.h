// The kernels of cuda/kernels: a method for each, which chooses its grid.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/module.h"
#include "cuda/kernels/arguments.h"
#include "cuda/launch/cublaslt.h"
#include "cuda/memory/allocation.h"

namespace cavs::cuda {

// Rows [begin, end) of an instruction's result: row r starts (r - base) * stride values after data,
// which is bfloat16 if `half`.
struct Target {
  void* data;
  int64_t stride, base;
  bool half = false;
};

template <class T>
class KernelLibrary {
 public:
  // images: the cubin of each kernel file, by name. blas: the path of cuBLASLt, or empty; few rows
  // are multiplied by our own kernels in any case. precision: of float32 products; kBfloat16 needs
  // images compiled with CAVS_HALF. deterministic: see CublasLt.
  KernelLibrary(std::shared_ptr<Device> device,
                const std::unordered_map<std::string, std::string>& images, Precision precision,
                const std::string& blas, bool deterministic);

  // Size of a value of packed weights.
  size_t packed_bytes() const { return half_ ? kHalfBytes : sizeof(T); }

  // Bytes of the workspaces of products and sums.
  size_t workspace_bytes() const;

  void copy_rows(const Rows<T>& in, int begin, int end, Target out) const;
  void copy_rows(const Rows<T>* in, int count, int begin, int end, Target out) const;
  void segment_max(const Rows<T>& in, int begin, int end, Target out) const;
  void segment_product(const Rows<T>& in, int begin, int end, Target out) const;
  void cross_entropy(const Rows<T>& logits, const int* label, int begin, int end,
                     Target loss) const;
  // slope: one number per row, by which its gradient is multiplied; 1 if it has no data.
  void cross_entropy_grad(const Rows<T>& logits, const Rows<T>& slope, const int* label, int begin,
                          int end, Target grad) const;
  // Up to kMostSources sums over the same rows.
  void sum_rows(const Rows<T>* in, const Sum<T>* out, int count, int begin, int end) const;
  void matmul(const Rows<T>* sources, int count, int begin, int end, const void* weight, int n,
              Target out, bool accumulate) const;
  void matmul_tn(const Rows<T>* a, int num_a, const Rows<T>* b, int num_b, int begin, int end,
                 T* out, int64_t out_stride, bool accumulate) const;
  void pack(const Piece<T>* pieces, int count) const;
  // The inverse of pack(): add packed values to where they came from; both are of type T.
  void unpack(const Piece<T>* pieces, int count) const;
  void lookup_grad(const Rows<T>& values, const int* offsets, const int* rows, const int* slots,
                   int count, T* out, bool first) const;
  void square(const UpdateChunk<T>* chunks, int count, double* partial) const;
  void compute_outcome(const double* partial, int count, const T* loss, double max_norm,
                       const Outcome* before, Outcome* outcome) const;
  void update(const UpdateChunk<T>* chunks, int count, const Optimizer& optimizer,
              const Outcome* outcome) const;
  // Load the kernel of an update program; `image` is its compiled module.
  void add_program(const std::string& key, const std::string& image);
  bool has_program(const std::string& key) const { return programs_.contains(key); }
  void update(const UpdateChunk<T>* chunks, int count, const std::string& program,
              const UpdateNumbers& numbers, const Outcome* outcome) const;

 private:
  void matmul_own(const Rows<T>* sources, int count, int begin, int end, const void* weight, int n,
                  Target out, bool accumulate) const;
  void matmul_tn_own(const Rows<T>* a, int num_a, const Rows<T>* b, int num_b, int begin, int end,
                     T* out, int64_t out_stride, bool accumulate) const;
  bool multiply_rows(const Rows<T>* sources, int count, int begin, int end, const void* weight,
                     int n, Target out, bool accumulate) const;
  Rows<T> concatenate(const Rows<T>* sources, int count, int begin, int end) const;
  int num_joined(const Rows<T>* sources, int count, bool half) const;
  bool is_matrix(const Rows<T>& source) const;
  int64_t copied_stride(int64_t width) const;
  size_t copied_bytes(const Rows<T>& source, int64_t rows) const;
  Matrix matrix(const Rows<T>& source, int begin, int end, Address to) const;
  const void* rows_after(const void* weight, int64_t k, int64_t n) const;
  Grid rows_grid(int64_t rows, int each) const;
  Grid vectors_grid(int64_t rows, int64_t width) const;
  int parts_of(int64_t rows, int64_t tiles, int blocks) const;
  int parts_of_depth(int64_t k, int64_t tiles) const;
  T* partial_sums(int parts, int64_t n) const;
  void sum_parts(const T* partial, int parts, int64_t n, T* out, int64_t width, int64_t stride,
                 int accumulate) const;
  Address address_of_row(const Target& out, int64_t row) const;

  std::shared_ptr<Device> device_;
  const bool half_;
  std::vector<std::unique_ptr<Module>> modules_;
  // Workspaces of a lane: partial sums, concatenated operands, counters of finished parts.
  struct Workspace {
    explicit Workspace(const std::shared_ptr<Device>& device)
        : partial(device), gathered(device), other(device), arrived(device) {}
    DeviceMemory partial, gathered, other, arrived;
  };
  Workspace& workspace() const { return *workspaces_[device_->lane()]; }
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  std::unique_ptr<CublasLt> blas_;
  Handle copy_rows_, segment_max_, segment_product_, cross_entropy_, cross_entropy_grad_, sum_rows_,
      sum_parts_of_rows_, sum_parts_, matmul_, matmul_16_, matmul_tn_, pack_, unpack_, lookup_grad_,
      square_, compute_outcome_, update_;
  std::unordered_map<std::string, Handle> programs_;
};

}  // namespace cavs::cuda
