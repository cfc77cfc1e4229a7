// The part of cuBLASLt that the engine uses, by plain loops, with attributes and types of
// cublasLt.h of CUDA 12. Everything else is refused as not supported.

#include <cmath>
#include <cstring>

#include "device_state.h"

using namespace twin;

namespace {

enum Status { kOk = 0, kNotReadyLt = 1, kBadValue = 7, kFailed = 13, kUnsupported = 15 };
enum Type { kFloat = 0, kDouble = 1, kBfloat16 = 14 };
enum Compute {
  k32F = 68,
  k32FPedantic = 69,
  k64F = 70,
  k64FPedantic = 71,
  kFast16BF = 75,
  kFastTF32 = 77
};

struct Description {
  int compute, scale;
  int transpose_a = 0, transpose_b = 0;  // 0: N, 1: T, 2: C
};

struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t ld;
  int order = 0;  // 0: columns are contiguous, 1: rows

  size_t element() const { return type == kDouble ? 8 : type == kFloat ? 4 : 2; }
  int64_t lines() const { return static_cast<int64_t>(order == 0 ? cols : rows); }
  int64_t length() const { return static_cast<int64_t>(order == 0 ? rows : cols); }
  bool valid() const { return rows > 0 && cols > 0 && ld >= length(); }
  size_t bytes() const { return static_cast<size_t>((lines() - 1) * ld + length()) * element(); }
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t schemes = 7;                          // allowed reduction schemes
  uint32_t alignment[4] = {256, 256, 256, 256};  // for A, B, C, D; the library's default
};

// The sizes of an algorithm of a heuristic: it accepts these and smaller ones, nothing else.
struct Algorithm {
  uint32_t shape;
  uint32_t workspace;
  uint32_t alignment[4];
  uint32_t schemes, m, n, k;
  uint64_t unused[3];
};
static_assert(sizeof(Algorithm) == 64);

struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct Problem {
  Description how;
  Layout a, b, c, d;

  uint64_t m() const { return how.transpose_a == 0 ? a.rows : a.cols; }
  uint64_t k() const { return how.transpose_a == 0 ? a.cols : a.rows; }
  uint64_t n() const { return how.transpose_b == 0 ? b.cols : b.rows; }

  Status check() const {
    for (const Layout* layout : {&a, &b, &c, &d})
      if (!layout->valid()) return kBadValue;
    const uint64_t inner = how.transpose_b == 0 ? b.rows : b.cols;
    if (inner != k() || d.rows != m() || d.cols != n() || c.rows != d.rows || c.cols != d.cols ||
        c.order != d.order || c.type != d.type)
      return kBadValue;
    const bool wide = how.compute == k64F || how.compute == k64FPedantic;
    if (a.type != b.type || (a.type == kDouble) != wide || (d.type == kDouble) != wide ||
        how.scale != (wide ? kDouble : kFloat))
      return kUnsupported;
    if (a.type == kBfloat16 && how.compute != k32F && how.compute != k32FPedantic)
      return kUnsupported;
    return a.type == kFloat && d.type != kFloat ? kUnsupported : kOk;
  }

  uint32_t hash() const {  // FNV-1a
    uint32_t h = 2166136261u;
    const auto mix = [&h](uint64_t value) {
      for (int i = 0; i < 8; ++i) h = (h ^ (value >> (8 * i) & 255u)) * 16777619u;
    };
    for (const int value : {how.compute, how.transpose_a, how.transpose_b})
      mix(static_cast<uint64_t>(value));
    for (const Layout* l : {&a, &b, &c, &d})
      for (const uint64_t value : {static_cast<uint64_t>(l->type), static_cast<uint64_t>(l->ld),
                                   static_cast<uint64_t>(l->order)})
        mix(value);
    return h;
  }

  bool odd() const {
    for (const Layout* layout : {&a, &b, &c, &d})
      if (layout->ld % 4 != 0) return true;
    return false;
  }

  bool made_for(const Algorithm& by) const { return m() == by.m && n() == by.n && k() == by.k; }
  bool taken_by(const Algorithm& by) const {
    const bool same = made_for(by);
    const bool smaller = m() <= by.m && n() <= by.n && k() <= by.k;
    return by.shape == hash() && (device().settings.exact_algorithms != 0 ? same : smaller);
  }
};

float rounded(float value, int compute) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (!std::isfinite(value)) return value;
  if (compute == kFastTF32) bits = (bits + 0x1000u) & ~0x1fffu;  // to nearest, ties away from zero
  if (compute == kFast16BF) bits = (bits + 0x7fffu + (bits >> 16 & 1u)) & ~0xffffu;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

double load(const Layout& layout, const void* data, uint64_t row, uint64_t col) {
  const auto line = static_cast<int64_t>(layout.order == 0 ? col : row);
  const auto at = static_cast<size_t>(line * layout.ld) + (layout.order == 0 ? row : col);
  if (layout.type == kDouble) return static_cast<const double*>(data)[at];
  if (layout.type == kFloat) return static_cast<const float*>(data)[at];
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(data)[at]} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void store(const Layout& layout, void* data, uint64_t row, uint64_t col, double value) {
  const auto line = static_cast<int64_t>(layout.order == 0 ? col : row);
  const auto at = static_cast<size_t>(line * layout.ld) + (layout.order == 0 ? row : col);
  if (layout.type == kDouble) {
    static_cast<double*>(data)[at] = value;
  } else if (layout.type == kFloat) {
    static_cast<float*>(data)[at] = static_cast<float>(value);
  } else {
    const float narrow = rounded(static_cast<float>(value), kFast16BF);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    static_cast<uint16_t*>(data)[at] =
        static_cast<uint16_t>(bits >> 16 | (std::isnan(narrow) ? 0x40u : 0u));
  }
}

// D = alpha A B + beta C, with sums in the type T of the accumulator.
template <class T>
void multiply(const Problem& p, double alpha, const void* a, const void* b, double beta,
              const void* c, void* d) {
  const uint64_t m = p.m(), n = p.n(), k = p.k();
  const auto operand = [&](const Layout& layout, const void* data, bool transposed, uint64_t row,
                           uint64_t col) {
    const double value = transposed ? load(layout, data, col, row) : load(layout, data, row, col);
    return sizeof(T) == 8 ? static_cast<T>(value)
                          : static_cast<T>(rounded(static_cast<float>(value), p.how.compute));
  };
  std::vector<T> right(k * n), sums(m * n);
  for (uint64_t i = 0; i < k; ++i)
    for (uint64_t j = 0; j < n; ++j)
      right[i * n + j] = operand(p.b, b, p.how.transpose_b != 0, i, j);
  for (uint64_t i = 0; i < m; ++i) {
    T* const sum = &sums[i * n];
    for (uint64_t l = 0; l < k; ++l) {
      const T left = operand(p.a, a, p.how.transpose_a != 0, i, l);
      const T* const line = &right[l * n];
      for (uint64_t j = 0; j < n; ++j) sum[j] += left * line[j];
    }
  }
  for (uint64_t i = 0; i < m; ++i)
    for (uint64_t j = 0; j < n; ++j) {
      T value = static_cast<T>(alpha) * sums[i * n + j];
      if (beta != 0.0) value += static_cast<T>(beta) * static_cast<T>(load(p.c, c, i, j));
      store(p.d, d, i, j, static_cast<double>(value));
    }
}

template <class T>
bool take(T& to, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof to) return false;
  std::memcpy(&to, from, sizeof to);
  return true;
}

// The values of an operand, whose lines may be padded.
bool touch_lines(Device& d, const void* data, const Layout& of, bool write) {
  const uint64_t lines = of.order == 0 ? of.cols : of.rows,
                 width = of.order == 0 ? of.rows : of.cols;
  for (uint64_t i = 0; i < lines; ++i) {
    const size_t before = i * static_cast<size_t>(of.ld) * of.element();
    if (!d.touch(static_cast<const char*>(data) + before, width * of.element(), write))
      return false;
  }
  return true;
}

bool ready() {
  Device& d = device();
  return d.initialized && current() != nullptr && d.fault.code == 0;
}

}  // namespace

TWIN_API int cublasLtCreate(void** handle) {
  if (handle == nullptr) return kBadValue;
  if (!ready()) return kNotReadyLt;
  *handle = new int(0);
  return kOk;
}

TWIN_API int cublasLtDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return handle == nullptr ? kBadValue : kOk;
}

TWIN_API int cublasLtMatmulDescCreate(Description** result, int compute, int scale) {
  if (result == nullptr) return kBadValue;
  for (const int known : {k32F, k32FPedantic, k64F, k64FPedantic, kFast16BF, kFastTF32})
    if (compute == known) {
      *result = new Description{compute, scale};
      return kOk;
    }
  return kUnsupported;
}

TWIN_API int cublasLtMatmulDescSetAttribute(Description* description, int attribute,
                                            const void* value, size_t bytes) {
  int number = 0;
  if (description == nullptr || !take(number, value, bytes)) return kBadValue;
  if (attribute == 2) return number == 0 ? kOk : kUnsupported;  // scalars are in host memory
  if (attribute == 7) return number == 1 ? kOk : kUnsupported;  // no epilogue
  if (attribute != 3 && attribute != 4) return kUnsupported;
  if (number < 0 || number > 2) return kBadValue;
  (attribute == 3 ? description->transpose_a : description->transpose_b) = number;
  return kOk;
}

TWIN_API int cublasLtMatmulDescDestroy(Description* description) {
  delete description;
  return kOk;
}

TWIN_API int cublasLtMatrixLayoutCreate(Layout** result, int type, uint64_t rows, uint64_t cols,
                                        int64_t ld) {
  if (result == nullptr) return kBadValue;
  if (type != kFloat && type != kDouble && type != kBfloat16) return kUnsupported;
  *result = new Layout{type, rows, cols, ld};
  return kOk;
}

TWIN_API int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                              size_t bytes) {
  if (layout == nullptr) return kBadValue;
  int number = 0;
  if (attribute == 2) return take(layout->rows, value, bytes) ? kOk : kBadValue;
  if (attribute == 3) return take(layout->cols, value, bytes) ? kOk : kBadValue;
  if (attribute == 4) return take(layout->ld, value, bytes) ? kOk : kBadValue;
  if (!take(number, value, bytes)) return kBadValue;
  if (attribute == 5) return number == 1 ? kOk : kUnsupported;  // one product, no batch
  if (attribute != 1 || number < 0 || number > 1) return kUnsupported;
  layout->order = number;
  return kOk;
}

TWIN_API int cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return kOk;
}

TWIN_API int cublasLtMatmulPreferenceCreate(Preference** result) {
  if (result == nullptr) return kBadValue;
  *result = new Preference;
  return kOk;
}

TWIN_API int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute,
                                                  const void* value, size_t bytes) {
  if (preference == nullptr) return kBadValue;
  if (attribute == 1) return take(preference->workspace, value, bytes) ? kOk : kBadValue;
  if (attribute >= 5 && attribute <= 8)
    return take(preference->alignment[attribute - 5], value, bytes) ? kOk : kBadValue;
  if (attribute != 3) return kUnsupported;
  return take(preference->schemes, value, bytes) ? kOk : kBadValue;
}

TWIN_API int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  return kOk;
}

TWIN_API int cublasLtMatmulAlgoGetHeuristic(void* handle, const Description* how, const Layout* a,
                                            const Layout* b, const Layout* c, const Layout* d,
                                            const Preference* preference, int requested,
                                            Heuristic* results, int* count) {
  for (const void* given :
       std::initializer_list<const void*>{handle, how, a, b, c, d, preference, results, count})
    if (given == nullptr) return kBadValue;
  *count = 0;
  if (requested < 1) return kBadValue;
  const Problem problem = {*how, *a, *b, *c, *d};
  const Status status = problem.check();
  if (status != kOk) return status;
  if (device().settings.odd_strides != 0 && problem.odd())
    return static_cast<int>(device().settings.odd_strides);
  ++device().heuristics;
  Heuristic& result = results[0] = {};
  // Requests some of the allowed workspace and overwrites it, as a split sum would.
  result.workspace = std::min<uint64_t>(preference->workspace, 32 << 10);
  result.algorithm.shape = problem.hash();
  result.algorithm.workspace = static_cast<uint32_t>(result.workspace);
  std::memcpy(result.algorithm.alignment, preference->alignment, sizeof preference->alignment);
  result.algorithm.schemes = preference->schemes;
  result.algorithm.m = static_cast<uint32_t>(problem.m());
  result.algorithm.n = static_cast<uint32_t>(problem.n());
  result.algorithm.k = static_cast<uint32_t>(problem.k());
  result.waves = 1.0f;
  *count = 1;
  return kOk;
}

TWIN_API int cublasLtMatmulAlgoCheck(void* handle, const Description* how, const Layout* a,
                                     const Layout* b, const Layout* c, const Layout* d,
                                     const Algorithm* algorithm, Heuristic* result) {
  for (const void* given :
       std::initializer_list<const void*>{handle, how, a, b, c, d, algorithm, result})
    if (given == nullptr) return kBadValue;
  const Problem problem = {*how, *a, *b, *c, *d};
  if (const Status status = problem.check(); status != kOk) return status;
  if (!problem.taken_by(*algorithm)) return kUnsupported;
  *result = {};
  result->algorithm = *algorithm;
  result->workspace = algorithm->workspace;
  result->waves = 1.0f;
  return kOk;
}

TWIN_API int cublasLtMatmul(void* handle, const Description* how, const void* alpha, const void* a,
                            const Layout* a_layout, const void* b, const Layout* b_layout,
                            const void* beta, const void* c, const Layout* c_layout, void* d,
                            const Layout* d_layout, const Algorithm* algorithm, void* workspace,
                            size_t workspace_bytes, CUstream stream_handle) {
  Device& dev = device();
  const std::lock_guard<std::recursive_mutex> guard(dev.lock);
  if (dev.settings.device_keeps_up != 0) dev.queue.finish_all();
  if (!ready()) return kFailed;
  for (const void* given : std::initializer_list<const void*>{handle, how, alpha, beta, a_layout,
                                                              b_layout, c_layout, d_layout})
    if (given == nullptr) return kBadValue;
  Stream* const stream = dev.queue.find(stream_handle);
  if (stream == nullptr) return kBadValue;
  if (usable(dev, stream) != kSuccess) return kFailed;
  const Problem problem = {*how, *a_layout, *b_layout, *c_layout, *d_layout};
  if (const Status status = problem.check(); status != kOk) return status;
  const auto scalar = [&](const void* from) {
    return how->scale == kDouble ? *static_cast<const double*>(from)
                                 : static_cast<double>(*static_cast<const float*>(from));
  };
  const double scale = scalar(alpha), keep = scalar(beta);
  const void* const data[] = {a, b, c, d};
  const Layout* const layouts[] = {a_layout, b_layout, c_layout, d_layout};
  for (int i = 0; i < 4; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(data[i]);
    if (i == 2 && keep == 0.0) continue;  // C is not read
    if (address % layouts[i]->element() != 0 || !dev.memory.device(address, layouts[i]->bytes()))
      return kBadValue;
    if (algorithm != nullptr && address % algorithm->alignment[i] != 0) return kUnsupported;
  }
  const auto space = reinterpret_cast<uintptr_t>(workspace);
  const size_t spoilt = algorithm == nullptr ? 0 : algorithm->workspace;
  if (algorithm != nullptr && (!problem.taken_by(*algorithm) || spoilt > workspace_bytes))
    return kBadValue;
  if (algorithm != nullptr && dev.settings.other_sizes != 0 && !problem.made_for(*algorithm))
    return static_cast<int>(dev.settings.other_sizes);
  if (spoilt != 0 && (space % 16 != 0 || !dev.memory.device(space, spoilt))) return kBadValue;
  Record record = {.kind = "product", .name = "cublasLtMatmul"};
  record.arguments = std::to_string(problem.m()) + "," + std::to_string(problem.n()) + "," +
                     std::to_string(problem.k()) + "," +
                     std::to_string(algorithm == nullptr ? 7 : algorithm->schemes);
  record.to = reinterpret_cast<uintptr_t>(d);
  record.from = reinterpret_cast<uintptr_t>(a);
  dev.add(stream, std::move(record), [=, &dev] {
    const bool ordered = touch_lines(dev, a, problem.a, false) &&
                         touch_lines(dev, b, problem.b, false) &&
                         (keep == 0.0 || touch_lines(dev, c, problem.c, false)) &&
                         touch_lines(dev, d, problem.d, true) && dev.touch(workspace, spoilt, true);
    if (!ordered) return;
    poison(workspace, spoilt);
    if (problem.a.type == kDouble)
      multiply<double>(problem, scale, a, b, keep, c, d);
    else
      multiply<float>(problem, scale, a, b, keep, c, d);
  });
  return kOk;
}
