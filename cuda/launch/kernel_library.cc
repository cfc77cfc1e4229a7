#include "cuda/launch/kernel_library.h"

#include <algorithm>

namespace cavs::cuda {

template <>
constexpr bool kPlainBytes<Optimizer> = true;  // numbers without padding
template <>
constexpr bool kPlainBytes<UpdateNumbers> = true;

namespace {

constexpr int kTile = 64;         // rows and columns of a product tile
constexpr int kFew = 16;          // rows of a tile in products of few rows
constexpr int kDepthEach = 128;   // least depth of a part of a split product
constexpr int kDepthSplit = 512;  // least depth that is split
constexpr int kColumns = 32;      // columns of a block in row sums
constexpr int kWarps = 8;         // warps of a block
constexpr int kRowsEach = 64;     // least rows of a part of a split sum
constexpr int kMostParts = 64;
// Blocks per multiprocessor: row sums and weight copies mostly wait for memory.
constexpr int kSumBlocks = 4, kProductBlocks = 2, kPackBlocks = 4;
constexpr int kBlasColumns = 32;  // narrower operands waste the tiles of cuBLASLt
constexpr int kBlocksEach = 16;   // blocks per multiprocessor, in kernels over rows
constexpr int kVectors = 32;      // 16-byte vectors of a row per block

unsigned tiles(int64_t n, int each) { return static_cast<unsigned>((n + each - 1) / each); }

Address address_after(const void* data, int64_t bytes) {
  return reinterpret_cast<Address>(data) + static_cast<Address>(bytes);
}

// Row stride of a copy in bfloat16: rows are aligned to 16 bytes.
int64_t aligned_width(int64_t width) { return (width + 7) / 8 * 8; }

}  // namespace

template <class T>
KernelLibrary<T>::KernelLibrary(std::shared_ptr<Device> device,
                                const std::unordered_map<std::string, std::string>& images,
                                Precision precision, const std::string& blas, bool deterministic)
    : device_(std::move(device)), half_(precision == Precision::kBfloat16) {
  for (int lane = 0; lane < Device::kLanes; ++lane) {
    workspaces_.push_back(std::make_unique<Workspace>(device_));
    DeviceMemory& arrived = workspaces_.back()->arrived;  // a split tile has at least two blocks
    arrived.reserve(sizeof(unsigned) * device_->multiprocessors());
    device_->use_lane(lane);
    device_->zero(arrived.at(), arrived.bytes());
  }
  device_->use_lane(0);
  const auto load = [&](const char* file,
                        std::initializer_list<std::pair<Handle*, const char*>> of) {
    const auto image = images.find(file);
    if (image == images.end()) throw std::invalid_argument(std::string("no image of ") + file);
    modules_.push_back(std::make_unique<Module>(device_, image->second));
    for (const auto& [function, name] : of) *function = modules_.back()->function(name);
  };
  load("rows.cu", {{&copy_rows_, "copy_rows"},
                   {&segment_max_, "segment_max"},
                   {&segment_product_, "segment_product"},
                   {&cross_entropy_, "cross_entropy"},
                   {&cross_entropy_grad_, "cross_entropy_grad"},
                   {&sum_rows_, "sum_rows"},
                   {&sum_parts_of_rows_, "sum_parts_of_rows"},
                   {&sum_parts_, "sum_parts"}});
  static const char* const kNames[][3] = {{"matmul", "matmul_16", "matmul_tn"},
                                          {"matmul_tf32", "matmul_tf32_16", "matmul_tn_tf32"},
                                          {"matmul_bf16", "matmul_bf16_16", "matmul_tn_bf16"}};
  const auto& names = kNames[static_cast<int>(precision)];
  load(precision == Precision::kFloat32 ? "matmul.cu" : "matmul_mma.cu",
       {{&matmul_, names[0]}, {&matmul_16_, names[1]}, {&matmul_tn_, names[2]}});
  if (!blas.empty()) {
    blas_ = std::make_unique<CublasLt>(device_, blas, precision, sizeof(T) == 8, deterministic);
  }
  load("pack.cu", {{&pack_, "pack"}, {&unpack_, "unpack"}});
  load("lookup.cu", {{&lookup_grad_, "lookup_grad"}});
  load("update.cu",
       {{&square_, "square"}, {&compute_outcome_, "compute_outcome"}, {&update_, "update"}});
}

// Grid whose blocks take `each` rows at a time.
template <class T>
Grid KernelLibrary<T>::rows_grid(int64_t rows, int each) const {
  const auto most = static_cast<unsigned>(device_->multiprocessors() * kBlocksEach);
  return {std::min(tiles(rows, each), most)};
}

// rows_grid() with spare blocks in y, which share the columns of wide rows.
template <class T>
Grid KernelLibrary<T>::vectors_grid(int64_t rows, int64_t width) const {
  Grid grid = rows_grid(rows, kWarps);
  const int64_t most = int64_t{device_->multiprocessors()} * kBlocksEach / std::max(grid.x, 1u);
  const int64_t wanted = tiles(width, kVectors * (16 / sizeof(T)));
  grid.y = device_->grid_height(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
  return grid;
}

// Number of parts of a row sum whose result has `tiles` tiles, so that each multiprocessor gets
// `blocks` blocks.
template <class T>
int KernelLibrary<T>::parts_of(int64_t rows, int64_t tiles, int blocks) const {
  const int64_t wanted = (blocks * device_->multiprocessors() + tiles - 1) / tiles;
  const int64_t most = std::min<int64_t>(kMostParts, (rows + kRowsEach - 1) / kRowsEach);
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most, 1)));
}

// Number of parts of the depth of a product of few rows, enough to occupy the multiprocessors that
// its tiles leave idle.
template <class T>
int KernelLibrary<T>::parts_of_depth(int64_t k, int64_t tiles) const {
  const int64_t most = device_->multiprocessors() / std::max<int64_t>(tiles, 1);
  if (k < kDepthSplit) return 1;
  return static_cast<int>(std::max<int64_t>(std::min(most, k / kDepthEach), 1));
}

// Workspace for the partial sums of n values, one part after the other; null for a single part.
template <class T>
T* KernelLibrary<T>::partial_sums(int parts, int64_t n) const {
  if (parts == 1) return nullptr;
  workspace().partial.reserve(sizeof(T) * parts * n);
  return workspace().partial.template as<T>();
}

// Add partial sums in order into `out`, rows of `width`. A single part is in `out` already.
template <class T>
void KernelLibrary<T>::sum_parts(const T* partial, int parts, int64_t n, T* out, int64_t width,
                                 int64_t stride, int accumulate) const {
  if (parts == 1) return;
  device_->launch(sum_parts_, rows_grid(n, kBlock), partial, parts, n, out, width, stride,
                  accumulate);
}

template <class T>
void KernelLibrary<T>::copy_rows(const Rows<T>& in, int begin, int end, Target out) const {
  copy_rows(&in, 1, begin, end, out);
}

// Concatenate operands, a launch per kMostSources of them.
template <class T>
void KernelLibrary<T>::copy_rows(const Rows<T>* in, int count, int begin, int end,
                                 Target out) const {
  const int half = out.half;
  int64_t column = 0;
  for (int i = 0; i < count;) {
    Sources<T> sources;
    int width = 0, widest = 0;
    while (i < count && sources.count < kMostSources) {
      widest = std::max(widest, in[i].width);
      width += in[i].width;
      sources.of[sources.count++] = in[i++];
    }
    Grid grid = vectors_grid(end - begin, widest);
    grid.z = static_cast<unsigned>(sources.count);
    void* to = reinterpret_cast<void*>(
        address_after(out.data, column * static_cast<int64_t>(out.half ? kHalfBytes : sizeof(T))));
    device_->launch(copy_rows_, grid, sources, begin, end, to, out.stride, out.base, half);
    column += width;
  }
}

template <class T>
void KernelLibrary<T>::segment_max(const Rows<T>& in, int begin, int end, Target out) const {
  const int half = out.half;
  device_->launch(segment_max_, vectors_grid(end - begin, in.width), in, begin, end, out.data,
                  out.stride, out.base, half);
}

template <class T>
void KernelLibrary<T>::segment_product(const Rows<T>& in, int begin, int end, Target out) const {
  const int half = out.half;
  device_->launch(segment_product_, vectors_grid(end - begin, in.width), in, begin, end, out.data,
                  out.stride, out.base, half);
}

template <class T>
void KernelLibrary<T>::cross_entropy(const Rows<T>& logits, const int* label, int begin, int end,
                                     Target loss) const {
  const int half = loss.half;
  device_->launch(cross_entropy_, rows_grid(end - begin, kWarps), logits, label, begin, end,
                  loss.data, loss.stride, loss.base, half);
}

template <class T>
void KernelLibrary<T>::cross_entropy_grad(const Rows<T>& logits, const Rows<T>& slope,
                                          const int* label, int begin, int end, Target grad) const {
  const int half = grad.half;
  device_->launch(cross_entropy_grad_, rows_grid(end - begin, kWarps), logits, slope, label, begin,
                  end, grad.data, grad.stride, grad.base, half);
}

template <class T>
void KernelLibrary<T>::sum_rows(const Rows<T>* in, const Sum<T>* out, int count, int begin,
                                int end) const {
  Sources<T> sources;
  Sums<T> sums;
  int total = 0;
  unsigned wide = 0;
  for (int i = 0; i < count; ++i) {
    sources.of[sources.count++] = in[i];
    sums.of[i] = out[i];
    total += in[i].width;
    wide += tiles(in[i].width, kColumns);
  }
  if (wide == 0) return;
  const int parts = parts_of(end - begin, wide, kSumBlocks);
  T* partial = partial_sums(parts, total);
  device_->launch(sum_rows_, Grid{wide, device_->grid_height(parts)}, sources, sums, begin, end,
                  partial, parts);
  if (parts == 1) return;
  device_->launch(sum_parts_of_rows_, rows_grid(total, kBlock), partial, parts, total, sums);
}

// True if cuBLASLt can read the operand as a matrix where it is stored.
template <class T>
bool KernelLibrary<T>::is_matrix(const Rows<T>& source) const {
  return source.map == RowMap::kSelf && source.stride >= source.width && source.half == half_;
}

// Row stride of a copied operand.
template <class T>
int64_t KernelLibrary<T>::copied_stride(int64_t width) const {
  return half_ ? aligned_width(width) : width;
}

// Aligned size of the copy of an operand; 0 if cuBLASLt reads it where it is stored.
template <class T>
size_t KernelLibrary<T>::copied_bytes(const Rows<T>& source, int64_t rows) const {
  return is_matrix(source) ? 0 : aligned(packed_bytes() * rows * copied_stride(source.width));
}

// Return an operand as a matrix; copies it to `to` if it is not one.
template <class T>
Matrix KernelLibrary<T>::matrix(const Rows<T>& source, int begin, int end, Address to) const {
  if (is_matrix(source)) {
    const int64_t before = (begin - source.base) * source.stride;
    return {address_after(source.data, before * packed_bytes()), source.stride};
  }
  const int64_t stride = copied_stride(source.width);
  copy_rows(source, begin, end, {reinterpret_cast<void*>(to), stride, begin, half_});
  return {to, stride};
}

// Return the operands copied into one.
template <class T>
Rows<T> KernelLibrary<T>::concatenate(const Rows<T>* sources, int count, int begin, int end) const {
  int width = 0;
  for (int i = 0; i < count; ++i) width += sources[i].width;
  const int64_t stride = copied_stride(width);
  DeviceMemory& to = workspace().gathered;
  to.reserve(packed_bytes() * (end - begin) * stride);
  if (width > 0) copy_rows(sources, count, begin, end, {to.as<void>(), stride, begin, half_});
  return {.data = to.as<void>(), .stride = stride, .base = begin, .half = half_, .width = width};
}

// Number of leading operands that are multiplied at once: those that are copied anyway, since each
// product reads and writes the result. A bfloat16 result takes all, so that no partial sum is
// rounded.
template <class T>
int KernelLibrary<T>::num_joined(const Rows<T>* sources, int count, bool half) const {
  if (half) return count;
  int n = 0;
  while (n < count && !is_matrix(sources[n])) ++n;
  return std::max(n, 1);
}

template <class T>
size_t KernelLibrary<T>::workspace_bytes() const {
  size_t bytes = 0;
  for (const auto& w : workspaces_) {
    for (const DeviceMemory* m : {&w->partial, &w->gathered, &w->other, &w->arrived}) {
      bytes += m->bytes();
    }
  }
  return bytes + (blas_ ? blas_->workspace_bytes() : 0);
}

// The rows of a packed weight after the first k.
template <class T>
const void* KernelLibrary<T>::rows_after(const void* weight, int64_t k, int64_t n) const {
  return static_cast<const char*>(weight) + k * n * packed_bytes();
}

template <class T>
Address KernelLibrary<T>::address_of_row(const Target& out, int64_t row) const {
  return address_after(out.data,
                       (row - out.base) * out.stride * (out.half ? kHalfBytes : sizeof(T)));
}

// Multiply by cuBLASLt; false if our own kernel is better.
template <class T>
bool KernelLibrary<T>::multiply_rows(const Rows<T>* sources, int count, int begin, int end,
                                     const void* weight, int n, Target out, bool accumulate) const {
  if (!blas_ || end - begin < device_->options().blas_rows || count == 0) return false;
  const Matrix to{address_of_row(out, begin), out.stride};
  bool add = accumulate;
  for (int i = 0, each; i < count; i += each) {
    each = num_joined(sources + i, count - i, out.half);
    const Rows<T> in = each > 1 ? concatenate(sources + i, each, begin, end) : sources[i];
    if (in.width == 0) continue;
    workspace().gathered.reserve(copied_bytes(in, end - begin));
    const Matrix a = matrix(in, begin, end, workspace().gathered.at());
    const Matrix w{reinterpret_cast<Address>(weight), n};
    if (!blas_->multiply(end - begin, n, in.width, a, w, to, out.half, add)) {
      matmul_own(&in, 1, begin, end, weight, n, out, add);
    }
    weight = rows_after(weight, in.width, n);
    add = true;
  }
  return add;
}

// A kernel takes kMostSources operands: more are multiplied in groups, which add to the result.
template <class T>
void KernelLibrary<T>::matmul_own(const Rows<T>* sources, int count, int begin, int end,
                                  const void* weight, int n, Target out, bool accumulate) const {
  const int rows = end - begin, half = out.half;
  const bool few = rows <= device_->options().few_rows;
  const unsigned wide = tiles(n, kTile),
                 tall = device_->grid_height(tiles(rows, few ? kFew : kTile));
  for (int first = 0; first < std::max(count, 1); first += kMostSources) {
    Sources<T> group;
    int k = 0;
    for (int i = first; i < std::min(count, first + kMostSources); ++i) {
      group.of[group.count++] = sources[i];
      k += sources[i].width;
    }
    const int add = accumulate || first > 0;
    if (few) {
      const int parts = parts_of_depth(k, int64_t{wide} * tall);
      T* partial = partial_sums(parts, int64_t{rows} * n);
      device_->launch(matmul_16_, Grid{wide, tall, device_->grid_height(parts)}, group, begin, end,
                      weight, k, n, out.data, out.stride, out.base, half, add, partial, parts,
                      workspace().arrived.template as<unsigned>());
    } else {
      device_->launch(matmul_, Grid{wide, tall}, group, begin, end, weight, k, n, out.data,
                      out.stride, out.base, half, add);
    }
    weight = rows_after(weight, k, n);
  }
}

template <class T>
void KernelLibrary<T>::matmul(const Rows<T>* sources, int count, int begin, int end,
                              const void* weight, int n, Target out, bool accumulate) const {
  if (n == 0) return;
  if (multiply_rows(sources, count, begin, end, weight, n, out, accumulate)) return;
  matmul_own(sources, count, begin, end, weight, n, out, accumulate);
}

// With cuBLASLt each product of a left and a right matrix is a block of the result. Consecutive
// left operands that must be copied are copied into one matrix; the right operands are copied once,
// into `other`.
template <class T>
void KernelLibrary<T>::matmul_tn(const Rows<T>* a, int num_a, const Rows<T>* b, int num_b,
                                 int begin, int end, T* out, int64_t out_stride,
                                 bool accumulate) const {
  const auto narrow = [](const Rows<T>& side) { return side.width < kBlasColumns; };
  const int rows = end - begin;
  if (!blas_ || rows < device_->options().blas_rows || std::all_of(a, a + num_a, narrow) ||
      std::all_of(b, b + num_b, narrow)) {
    matmul_tn_own(a, num_a, b, num_b, begin, end, out, out_stride, accumulate);
    return;
  }
  size_t bytes = 0;
  for (int j = 0; j < num_b; ++j) bytes += narrow(b[j]) ? 0 : copied_bytes(b[j], rows);
  workspace().other.reserve(bytes);
  std::vector<Matrix> right(num_b);
  Address next = workspace().other.at();
  for (int j = 0; j < num_b; ++j) {
    if (narrow(b[j])) continue;
    right[j] = matrix(b[j], begin, end, next);
    next += copied_bytes(b[j], rows);
  }
  for (int i = 0, each; i < num_a; i += each) {
    each = num_joined(a + i, num_a - i, false);
    const Rows<T> in = each > 1 ? concatenate(a + i, each, begin, end) : a[i];
    T* to = out;
    out += in.width * out_stride;
    if (narrow(in)) {
      matmul_tn_own(&in, 1, b, num_b, begin, end, to, out_stride, accumulate);
      continue;
    }
    workspace().gathered.reserve(copied_bytes(in, rows));
    Matrix left = matrix(in, begin, end, workspace().gathered.at());
    left.transposed = true;
    for (int j = 0; j < num_b; to += b[j++].width) {
      const Matrix block{reinterpret_cast<Address>(to), out_stride};
      if (narrow(b[j]) ||
          !blas_->multiply(in.width, b[j].width, rows, left, right[j], block, false, accumulate)) {
        matmul_tn_own(&in, 1, b + j, 1, begin, end, to, out_stride, accumulate);
      }
    }
  }
}

template <class T>
void KernelLibrary<T>::matmul_tn_own(const Rows<T>* a, int num_a, const Rows<T>* b, int num_b,
                                     int begin, int end, T* out, int64_t out_stride,
                                     bool accumulate) const {
  const int add = accumulate;
  int64_t row = 0;
  for (int i = 0; i < num_a; i += kMostSources) {
    Sources<T> left;
    int k = 0;
    for (int s = i; s < std::min(num_a, i + kMostSources); ++s) {
      left.of[left.count++] = a[s];
      k += a[s].width;
    }
    int64_t column = 0;
    for (int j = 0; j < num_b; j += kMostSources) {
      Sources<T> right;
      int n = 0;
      for (int s = j; s < std::min(num_b, j + kMostSources); ++s) {
        right.of[right.count++] = b[s];
        n += b[s].width;
      }
      T* to = out + row * out_stride + column;
      column += n;
      if (k == 0 || n == 0) continue;
      const unsigned wide = tiles(n, kTile), tall = device_->grid_height(tiles(k, kTile));
      const int parts = parts_of(end - begin, int64_t{wide} * tall, kProductBlocks);
      const int64_t size = static_cast<int64_t>(k) * n;
      T* partial = partial_sums(parts, size);
      device_->launch(matmul_tn_, Grid{wide, tall, device_->grid_height(parts)}, left, right, begin,
                      end, k, n, to, out_stride, add, partial, parts);
      sum_parts(partial, parts, size, to, n, out_stride, add);
    }
    row += k;
  }
}

template <class T>
void KernelLibrary<T>::pack(const Piece<T>* pieces, int count) const {
  if (count == 0) return;
  const Grid grid{static_cast<unsigned>(kPackBlocks * device_->multiprocessors()),
                  device_->grid_height(count)};
  device_->launch(pack_, grid, pieces, count);
}

template <class T>
void KernelLibrary<T>::unpack(const Piece<T>* pieces, int count) const {
  if (count == 0) return;
  const Grid grid{static_cast<unsigned>(kPackBlocks * device_->multiprocessors()),
                  device_->grid_height(count)};
  device_->launch(unpack_, grid, pieces, count);
}

template <class T>
void KernelLibrary<T>::lookup_grad(const Rows<T>& values, const int* offsets, const int* rows,
                                   const int* slots, int count, T* out, bool first) const {
  if (count == 0) return;
  const int writes = first;
  device_->launch(lookup_grad_, rows_grid(count, kWarps), values, offsets, rows, slots, count, out,
                  writes);
}

template <class T>
void KernelLibrary<T>::square(const UpdateChunk<T>* chunks, int count, double* partial) const {
  if (count == 0) return;
  device_->launch(square_, Grid{static_cast<unsigned>(count)}, chunks, count, partial);
}

template <class T>
void KernelLibrary<T>::compute_outcome(const double* partial, int count, const T* loss,
                                       double max_norm, const Outcome* before,
                                       Outcome* outcome) const {
  device_->launch(compute_outcome_, Grid{}, partial, count, loss, max_norm, before, outcome);
}

template <class T>
void KernelLibrary<T>::update(const UpdateChunk<T>* chunks, int count, const Optimizer& optimizer,
                              const Outcome* outcome) const {
  if (count == 0) return;
  device_->launch(update_, Grid{static_cast<unsigned>(count)}, chunks, count, optimizer, outcome);
}

template <class T>
void KernelLibrary<T>::add_program(const std::string& key, const std::string& image) {
  auto module = std::make_unique<Module>(device_, image);
  const Handle function = module->function("update_by_program");
  modules_.push_back(std::move(module));
  programs_[key] = function;
}

template <class T>
void KernelLibrary<T>::update(const UpdateChunk<T>* chunks, int count, const std::string& program,
                              const UpdateNumbers& numbers, const Outcome* outcome) const {
  if (count == 0) return;
  device_->launch(programs_.at(program), Grid{static_cast<unsigned>(count)}, chunks, count, numbers,
                  outcome);
}

template class KernelLibrary<float>;
template class KernelLibrary<double>;

}  // namespace cavs::cuda
