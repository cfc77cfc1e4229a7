#include "blas.h"

#include <dlfcn.h>

#include <algorithm>

namespace cavs::cuda {
namespace {

// Numbers of cublasLt.h, the same in all its versions.
constexpr int kCompute32F = 68, kCompute64F = 70, kComputeTf32 = 77;
constexpr int kReal32 = 0, kReal64 = 1, kRealBf16 = 14;
constexpr int kTransposeA = 3, kTransposeB = 4;    // of a description
constexpr int kMaxWorkspace = 1, kAlignmentA = 5;  // of a preference; B, C and D follow A
constexpr int32_t kTransposed = 1;                 // CUBLAS_OP_T
constexpr int kNotSupported = 15;
constexpr size_t kWorkspace = size_t{32} << 20;  // what the library asks for on Hopper
constexpr size_t kMostPlans = 4096;              // then they are made anew
constexpr uint32_t kMostAligned = 256;

uint32_t alignment(Address at) {
  uint32_t bytes = kMostAligned;
  while (at % bytes != 0) bytes /= 2;
  return bytes;
}

}  // namespace

struct Blas::Entries {
  explicit Entries(const std::string& library) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw DeviceFault(std::string("cuBLASLt cannot be loaded: ") + dlerror(),
                        "pip install \"cavs[cuda12]\"");
    }
    const auto find = [&](auto& entry, const char* name) {
      void* symbol = dlsym(handle, name);
      if (symbol == nullptr) {
        throw DeviceFault(library + " has no " + name, "pip install \"cavs[cuda12]\"");
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
    find(multiply, "cublasLtMatmul");
  }

  struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
  };
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
  int (*multiply)(Handle, Handle, const void*, Address, Handle, Address, Handle, const void*,
                  Address, Handle, Address, Handle, const Algorithm*, Address, size_t, Handle);
};

Blas::Blas(std::shared_ptr<Device> device, const std::string& library, Precision precision,
           bool wide)
    : device_(std::move(device)),
      entries_(std::make_unique<Entries>(library)),
      precision_(precision),
      wide_(wide),
      workspace_(device_) {
  check(entries_->create(&handle_), "cublasLtCreate");
  workspace_.reserve(kWorkspace * Device::kLanes);
}

Blas::~Blas() {
  for (auto& [key, plan] : plans_) drop(plan);
  const Current here(*device_, std::nothrow);
  if (handle_ != nullptr && here) entries_->destroy(handle_);
}

void Blas::check(int status, const char* call) const {
  if (status == 0) return;
  throw DeviceFault(std::string(call) + ": status " + std::to_string(status) + " of cuBLASLt",
                    "run nvidia-smi; device='cpu' goes on working");
}

void Blas::drop(Plan& plan) const {
  for (Handle layout : {plan.a, plan.b, plan.c}) {
    if (layout != nullptr) entries_->drop_layout(layout);
  }
  if (plan.description != nullptr) entries_->drop_description(plan.description);
}

// The library thinks in columns: a row-major product is that of the transposes, in reverse.
Blas::Plan Blas::make(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b,
                      const Matrix& c, bool half) const {
  const Entries& e = *entries_;
  const int sums = wide_ ? kReal64 : kReal32;
  const int operands = precision_ == Precision::kBfloat16 ? kRealBf16 : sums;
  const int compute = wide_                            ? kCompute64F
                      : precision_ == Precision::kTf32 ? kComputeTf32
                                                       : kCompute32F;
  Plan plan;
  Handle preference = nullptr;
  const auto lay_out = [&](Handle& layout, int type, int64_t rows, int64_t columns, int64_t ld) {
    check(e.lay_out(&layout, type, columns, rows, ld), "cublasLtMatrixLayoutCreate");
  };
  try {
    check(e.describe(&plan.description, compute, sums), "cublasLtMatmulDescCreate");
    const auto transpose = [&](int attribute) {
      check(e.set_description(plan.description, attribute, &kTransposed, sizeof(kTransposed)),
            "cublasLtMatmulDescSetAttribute");
    };
    if (b.transposed) transpose(kTransposeA);
    if (a.transposed) transpose(kTransposeB);
    lay_out(plan.a, operands, b.transposed ? n : k, b.transposed ? k : n, b.ld);
    lay_out(plan.b, operands, a.transposed ? k : m, a.transposed ? m : k, a.ld);
    lay_out(plan.c, half ? kRealBf16 : sums, m, n, c.ld);
    check(e.prefer(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](int attribute, auto value) {
      check(e.set_preference(preference, attribute, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(kMaxWorkspace, uint64_t{kWorkspace});
    const Address at[] = {b.at, a.at, c.at, c.at};
    for (int i = 0; i < 4; ++i) prefer(kAlignmentA + i, alignment(at[i]));
    Entries::Heuristic best{};
    int count = 0;
    const int status = e.heuristic(handle_, plan.description, plan.a, plan.b, plan.c, plan.c,
                                   preference, 1, &best, &count);
    if (status != kNotSupported) check(status, "cublasLtMatmulAlgoGetHeuristic");
    plan.found = status == 0 && count > 0 && best.state == 0;
    plan.algorithm = best.algorithm;
    e.drop_preference(preference);
    return plan;
  } catch (...) {
    if (preference != nullptr) e.drop_preference(preference);
    drop(plan);
    throw;
  }
}

const Blas::Plan& Blas::plan(int64_t m, int64_t n, int64_t k, const Matrix& a, const Matrix& b,
                             const Matrix& c, bool half) {
  const int kinds = (a.transposed ? 1 : 0) + (b.transposed ? 2 : 0) + (half ? 4 : 0);
  const auto aligned =
      static_cast<int>((alignment(a.at) << 20) + (alignment(b.at) << 10) + alignment(c.at));
  const Key key{m, n, k, a.ld, b.ld, c.ld, kinds, aligned};
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  if (plans_.size() >= kMostPlans) {
    device_->issue_recorded();
    for (auto& [old, plan] : plans_) drop(plan);
    plans_.clear();
  }
  Plan& made = plans_.emplace(key, make(m, n, k, a, b, c, half)).first->second;
  made.number = ++made_;
  return made;
}

// As a command: the same bytes are the same product, whatever plans were dropped between them.
struct Blas::Product {
  const Blas* blas;
  const Plan* plan;
  uint64_t number;  // of the plan
  Address a, b, c;
  uint64_t accumulate;
};

bool Blas::multiply(int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, Matrix c, bool half,
                    bool accumulate) {
  const Plan& p = plan(m, n, k, a, b, c, half);
  if (!p.found) return false;
  const Product product{this, &p, p.number, a.at, b.at, c.at, accumulate};
  static_assert(kPlainBytes<Product>);
  device_->call(&Blas::issue, &product, sizeof(product));
  return true;
}

void Blas::issue(const void* product, int lane, Handle stream) {
  const Product& p = *static_cast<const Product*>(product);
  const Blas& of = *p.blas;
  const Plan& plan = *p.plan;
  const double wide[] = {1, static_cast<double>(p.accumulate)};
  const float narrow[] = {1, static_cast<float>(p.accumulate)};
  const void* alpha = of.wide_ ? static_cast<const void*>(&wide[0]) : &narrow[0];
  const void* beta = of.wide_ ? static_cast<const void*>(&wide[1]) : &narrow[1];
  of.check(of.entries_->multiply(of.handle_, plan.description, alpha, p.b, plan.a, p.a, plan.b,
                                 beta, p.c, plan.c, p.c, plan.c, &plan.algorithm,
                                 of.workspace_.at(kWorkspace * lane), kWorkspace, stream),
           "cublasLtMatmul");
}

}  // namespace cavs::cuda
