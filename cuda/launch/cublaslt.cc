#include "cuda/launch/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "cuda/driver/context.h"

namespace cavs::cuda {
namespace {

// Constants of cublasLt.h, the same in all versions.
constexpr int kCompute32F = 68, kCompute64F = 70, kComputeTf32 = 77;
constexpr int kReal32 = 0, kReal64 = 1, kRealBf16 = 14;
constexpr int kTransposeA = 3, kTransposeB = 4;  // cublasLtMatmulDescAttributes_t
constexpr int kMaxWorkspace = 1, kSchemes = 3,
              kAlignmentA = 5;      // preference attributes; B, C, D follow A
constexpr int32_t kTransposed = 1;  // CUBLAS_OP_T
constexpr int kInvalidValue = 7, kNotSupported = 15;
constexpr size_t kWorkspace = size_t{32} << 20;  // size that NVIDIA recommends for Hopper
constexpr size_t kMostPlans = 4096, kMostAlgorithms = 4096;
constexpr uint32_t kMostAligned = 16;  // the widest load, in bytes
// Reduction schemes: partial sums are added in the result in place, or in the workspace in float32
// or in the result's type. kNoScheme: sums are not split.
constexpr uint32_t kNoScheme = 0, kInFloat32 = 2, kAnyScheme = 7;

uint32_t alignment(Address at) {
  uint32_t bytes = kMostAligned;
  while (at % bytes != 0) bytes /= 2;
  return bytes;
}

// Round a number of rows up to the largest that shares its algorithm; there are eight an octave.
int64_t shared_rows(int64_t rows) {
  int64_t step = 1;
  while (rows > 16 * step) step *= 2;
  return (rows + step - 1) / step * step;
}

// True for the two statuses by which the library refuses sizes, strides or alignments.
bool refused(int status) { return status == kInvalidValue || status == kNotSupported; }

}  // namespace

// cublasLtMatmulHeuristicResult_t.
struct CublasLt::Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct CublasLt::Entries {
  Entries(const std::string& library, const std::string& install) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw DeviceFault(std::string("cuBLASLt cannot be loaded: ") + dlerror(),
                        install + ", or a cavs.cuda.Device with cublas_lt=None");
    }
    const auto find = [&](auto& entry, const char* name) {
      void* symbol = dlsym(handle, name);
      if (symbol == nullptr) {
        throw DeviceFault(library + " has no " + name + ", which cavs needs",
                          install + " --upgrade");
      }
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(symbol);
    };
    find(create, "cublasLtCreate");
    find(destroy, "cublasLtDestroy");
    find(describe, "cublasLtMatmulDescCreate");
    find(set_description, "cublasLtMatmulDescSetAttribute");
    find(drop_description, "cublasLtMatmulDescDestroy");
    find(lay_out, "cublasLtMatrixLayoutCreate");
    find(drop_layout, "cublasLtMatrixLayoutDestroy");
    find(prefer, "cublasLtMatmulPreferenceCreate");
    find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(drop_preference, "cublasLtMatmulPreferenceDestroy");
    find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(check, "cublasLtMatmulAlgoCheck");
    find(multiply, "cublasLtMatmul");
  }

  int (*create)(Handle*);
  int (*destroy)(Handle);
  int (*describe)(Handle*, int, int);
  int (*set_description)(Handle, int, const void*, size_t);
  int (*drop_description)(Handle);
  int (*lay_out)(Handle*, int, uint64_t, uint64_t, int64_t);
  int (*drop_layout)(Handle);
  int (*prefer)(Handle*);
  int (*set_preference)(Handle, int, const void*, size_t);
  int (*drop_preference)(Handle);
  int (*heuristic)(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, Heuristic*, int*);
  int (*check)(Handle, Handle, Handle, Handle, Handle, Handle, const Algorithm*, Heuristic*);
  int (*multiply)(Handle, Handle, const void*, Address, Handle, Address, Handle, const void*,
                  Address, Handle, Address, Handle, const Algorithm*, Address, size_t, Handle);
};

void CublasLt::check(int status, const char* call) const {
  if (status == 0) return;
  device_->check_kernels(call);
  throw DeviceFault(std::string(call) + ": status " + std::to_string(status) + " of cuBLASLt",
                    "run nvidia-smi; device='cpu' goes on working");
}

// The library is column-major: a row-major product is the product of the transposes, swapped.
class CublasLt::Description {
 public:
  Description(const CublasLt& of, const Shape& s) : entries_(*of.entries_) {
    const int sums = of.wide_ ? kReal64 : kReal32;
    const int operands = of.precision_ == Precision::kBfloat16 ? kRealBf16 : sums;
    const int compute = of.wide_                            ? kCompute64F
                        : of.precision_ == Precision::kTf32 ? kComputeTf32
                                                            : kCompute32F;
    const auto lay_out = [&](Handle& layout, int type, int64_t rows, int64_t columns, int64_t ld) {
      of.check(entries_.lay_out(&layout, type, columns, rows, ld), "cublasLtMatrixLayoutCreate");
    };
    try {
      of.check(entries_.describe(&product, compute, sums), "cublasLtMatmulDescCreate");
      const auto transpose = [&](int attribute) {
        of.check(entries_.set_description(product, attribute, &kTransposed, sizeof(kTransposed)),
                 "cublasLtMatmulDescSetAttribute");
      };
      if (s.transposed_b) transpose(kTransposeA);
      if (s.transposed_a) transpose(kTransposeB);
      lay_out(a, operands, s.transposed_b ? s.n : s.k, s.transposed_b ? s.k : s.n, s.ld[1]);
      lay_out(b, operands, s.transposed_a ? s.k : s.m, s.transposed_a ? s.m : s.k, s.ld[0]);
      lay_out(c, s.half ? kRealBf16 : sums, s.m, s.n, s.ld[2]);
    } catch (...) {
      drop();
      throw;
    }
  }
  ~Description() { drop(); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  Handle product = nullptr;
  Handle a = nullptr, b = nullptr, c = nullptr;  // in the library's order: our b, a and c

 private:
  void drop() const {
    for (Handle layout : {a, b, c}) {
      if (layout != nullptr) entries_.drop_layout(layout);
    }
    if (product != nullptr) entries_.drop_description(product);
  }
  const Entries& entries_;
};

CublasLt::CublasLt(std::shared_ptr<Device> device, const std::string& library, Precision precision,
                   bool wide, bool deterministic)
    : device_(std::move(device)),
      entries_(std::make_unique<Entries>(library, device_->driver().install)),
      precision_(precision),
      wide_(wide),
      deterministic_(deterministic),
      workspace_(device_),
      plans_(kMostPlans),
      algorithms_(kMostAlgorithms) {
  check(entries_->create(&handle_), "cublasLtCreate");
  workspace_.reserve(kWorkspace * Device::kLanes);
}

CublasLt::~CublasLt() {
  const CurrentContext here(*device_, std::nothrow);
  if (handle_ != nullptr && here) entries_->destroy(handle_);
}

std::optional<CublasLt::Algorithm> CublasLt::ask(const Shape& s, const Description& d) const {
  const Entries& e = *entries_;
  Handle preference = nullptr;
  check(e.prefer(&preference), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<void, int (*)(Handle)> dropped(preference, e.drop_preference);
  const auto prefer = [&](int attribute, auto value) {
    check(e.set_preference(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(kMaxWorkspace, uint64_t{kWorkspace});
  // Partial sums in bfloat16 would each be rounded.
  prefer(kSchemes, deterministic_ ? kNoScheme : s.half ? kInFloat32 : kAnyScheme);
  const uint32_t aligned[] = {s.aligned[1], s.aligned[0], s.aligned[2], s.aligned[2]};
  for (int i = 0; i < 4; ++i) prefer(kAlignmentA + i, aligned[i]);
  Heuristic best{};
  int count = 0;
  const int status =
      e.heuristic(handle_, d.product, d.a, d.b, d.c, d.c, preference, 1, &best, &count);
  if (refused(status)) return std::nullopt;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0 || best.state != 0) return std::nullopt;
  return best.algorithm;
}

bool CublasLt::fits(const Algorithm& algorithm, const Description& d) const {
  Heuristic found{};
  const int status = entries_->check(handle_, d.product, d.a, d.b, d.c, d.c, &algorithm, &found);
  return status == 0 && found.state == 0 && found.workspace <= kWorkspace;
}

// Heuristics take longer than a launch, and every batch has new numbers of rows. An algorithm is
// asked for the largest number of rows that shares it, so results do not depend on earlier batches.
std::optional<CublasLt::Algorithm> CublasLt::algorithm(const Shape& shape,
                                                       const Description& exact) {
  Shape most = shape;
  int64_t& rows = shape.transposed_a ? most.k : most.m;
  rows = shared_rows(rows);
  const std::optional<Algorithm>* shared = algorithms_.find(most);
  if (shared == nullptr) {
    if (algorithms_.full()) algorithms_.drop_oldest();
    shared = &algorithms_.insert(most, ask(most, Description(*this, most)));
  }
  if (most == shape || (*shared && fits(**shared, exact))) return *shared;
  return ask(shape, exact);
}

CublasLt::Plan& CublasLt::plan(const Shape& shape) {
  if (Plan* known = plans_.find(shape)) return *known;
  if (plans_.full()) {
    device_->issue_recorded();  // a recorded product may use the oldest plan
    plans_.drop_oldest();
  }
  auto description = std::make_unique<const Description>(*this, shape);
  const std::optional<Algorithm> chosen = algorithm(shape, *description);
  return plans_.insert(shape, {shape, std::move(description), chosen, ++num_plans_});
}

// A recorded product: equal bytes are the same product, even if plans were evicted in between.
struct CublasLt::Product {
  const CublasLt* blas;
  Plan* plan;
  uint64_t number;  // number of the plan
  Address a, b, c;
  uint64_t accumulate;
};

bool CublasLt::multiply(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, Matrix c, bool half,
                        bool accumulate) {
  Plan& p = plan({m,
                  n,
                  k,
                  {a.ld, b.ld, c.ld},
                  a.transposed,
                  b.transposed,
                  half,
                  {alignment(a.at), alignment(b.at), alignment(c.at)}});
  if (!p.algorithm) return false;
  const Product product{this, &p, p.number, a.at, b.at, c.at, accumulate};
  static_assert(kPlainBytes<Product>);
  device_->call(&CublasLt::issue, &product, sizeof(product));
  return true;
}

void CublasLt::issue(const void* product, int lane, Handle stream) {
  const Product& p = *static_cast<const Product*>(product);
  const CublasLt& of = *p.blas;
  Plan& plan = *p.plan;
  const Description& d = *plan.description;
  const double wide[] = {1, static_cast<double>(p.accumulate)};
  const float narrow[] = {1, static_cast<float>(p.accumulate)};
  const void* alpha = of.wide_ ? static_cast<const void*>(&wide[0]) : &narrow[0];
  const void* beta = of.wide_ ? static_cast<const void*>(&wide[1]) : &narrow[1];
  const auto multiply = [&] {
    return of.entries_->multiply(of.handle_, d.product, alpha, p.b, d.a, p.a, d.b, beta, p.c, d.c,
                                 p.c, d.c, &*plan.algorithm, of.workspace_.at(kWorkspace * lane),
                                 kWorkspace, stream);
  };
  int status = multiply();
  // The shared algorithm may be refused here although cublasLtMatmulAlgoCheck accepted it.
  if (refused(status) && !std::exchange(plan.asked, true)) {
    if (const auto own = of.ask(plan.shape, d)) {
      plan.algorithm = own;
      status = multiply();
    }
  }
  of.check(status, "cublasLtMatmul");
}

}  // namespace cavs::cuda
