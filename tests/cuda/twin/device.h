// The device language for g++, beyond C++. A kernel runs one thread at a time; barriers and warp
// operations call the driver, which switches to another thread of the block.
#pragma once

#include "module.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
// A module's .bss holds only shared variables, and the driver poisons it before each block. (A
// separate section is not possible: g++ 12 ignores it for variables of templates.)
#define __shared__ static
#define TWIN_ELSEWHERE __attribute__((section("twin_elsewhere")))
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[], __bss_start[],
    _end[];  // defined by the linker

#define TWIN_VECTOR2(T, name, bytes)         \
  struct alignas(bytes) name##2 { T x, y; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define TWIN_VECTOR3(T, name)    \
  struct name##3 { T x, y, z; }; \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
#define TWIN_VECTOR4(T, name, bytes)               \
  struct alignas(bytes) name##4 { T x, y, z, w; }; \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TWIN_VECTOR2(int, int, 8)
TWIN_VECTOR2(unsigned, uint, 8)
TWIN_VECTOR2(float, float, 8)
TWIN_VECTOR2(double, double, 16)
TWIN_VECTOR2(long long, longlong, 16)
TWIN_VECTOR3(int, int)
TWIN_VECTOR3(float, float)
TWIN_VECTOR4(int, int, 16)
TWIN_VECTOR4(unsigned, uint, 16)
TWIN_VECTOR4(float, float, 16)
TWIN_VECTOR4(double, double, 16)
using uint3 = twin::Index;
using dim3 = twin::Index;

static uint3 threadIdx TWIN_ELSEWHERE, blockIdx TWIN_ELSEWHERE;
static dim3 blockDim TWIN_ELSEWHERE, gridDim TWIN_ELSEWHERE;
static twin::Hooks twin_hooks TWIN_ELSEWHERE;
constexpr int warpSize = 32;

inline void __syncthreads(int line = __builtin_LINE()) { twin_hooks.barrier(line, false); }
inline void __threadfence() {}
// Blocks run in turn until their next barrier of the grid, threads of a block until their next
// barrier.
inline unsigned atomicAdd(unsigned* to, unsigned value) {
  const unsigned before = *to;
  *to += value;
  return before;
}
inline void __threadfence_block() {}
__noinline__ inline void __trap() {
  twin_hooks.fault(719, "__trap()", __builtin_return_address(0));
}

namespace twin {

// A barrier of all threads of a cooperative launch: earlier writes are visible after it, like
// cooperative_groups::this_grid().sync().
inline void grid_barrier(int line = __builtin_LINE()) { twin_hooks.barrier(line, true); }

template <class T>
unsigned long long bits_of(T value) {
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class To, class From>
To cast(From from) {
  static_assert(sizeof(To) <= sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
T shuffle(WarpOp op, unsigned mask, T value, int lane, int width, int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return cast<T>(twin_hooks.warp(op, mask, line, bits_of(value), lane, width, nullptr, 0));
}

// Every lane gets the values of all 32, for the twin's versions of tensor-core instructions.
template <class T>
void warp_gather(const T& mine, T (&all)[32], int line = __builtin_LINE()) {
  const auto address = reinterpret_cast<unsigned long long>(&mine);
  twin_hooks.warp(WarpOp::kGather, ~0u, line, address, 0, 32, all, sizeof(T));
}

}  // namespace twin

inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  twin_hooks.warp(twin::WarpOp::kSync, mask, line, 0, 0, 32, nullptr, 0);
}
#define TWIN_SHUFFLE(name, op)                                                            \
  template <class T>                                                                      \
  T name(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) { \
    return twin::shuffle(twin::WarpOp::op, mask, value, lane, width, line);               \
  }
TWIN_SHUFFLE(__shfl_sync, kGet)
TWIN_SHUFFLE(__shfl_up_sync, kUp)
TWIN_SHUFFLE(__shfl_down_sync, kDown)
TWIN_SHUFFLE(__shfl_xor_sync, kXor)
inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return (unsigned)twin_hooks.warp(twin::WarpOp::kBallot, mask, line, predicate != 0, 0, 32,
                                   nullptr, 0);
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, line) == mask;
}

template <class T>
T __ldg(const T* address) {
  return *address;
}
inline int __float_as_int(float x) { return twin::cast<int>(x); }
inline unsigned __float_as_uint(float x) { return twin::cast<unsigned>(x); }
inline float __int_as_float(int x) { return twin::cast<float>(x); }
inline float __uint_as_float(unsigned x) { return twin::cast<float>(x); }
inline long long __double_as_longlong(double x) { return twin::cast<long long>(x); }
inline double __longlong_as_double(long long x) { return twin::cast<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

// As in CUDA, each function takes float or double; names that end in f are those of C.
#define TWIN_MATH1(name)                    \
  extern "C" double name(double) noexcept;  \
  extern "C" float name##f(float) noexcept; \
  inline float name(float x) { return name##f(x); }
#define TWIN_MATH2(name)                           \
  extern "C" double name(double, double) noexcept; \
  extern "C" float name##f(float, float) noexcept; \
  inline float name(float x, float y) { return name##f(x, y); }
TWIN_MATH1(exp)
TWIN_MATH1(exp2)
TWIN_MATH1(expm1)
TWIN_MATH1(log)
TWIN_MATH1(log2)
TWIN_MATH1(log1p)
TWIN_MATH1(log10)
TWIN_MATH1(sqrt)
TWIN_MATH1(cbrt)
TWIN_MATH1(sin)
TWIN_MATH1(cos)
TWIN_MATH1(tan)
TWIN_MATH1(sinh)
TWIN_MATH1(cosh)
TWIN_MATH1(tanh)
TWIN_MATH1(erf)
TWIN_MATH1(fabs)
TWIN_MATH1(floor)
TWIN_MATH1(ceil)
TWIN_MATH1(trunc)
TWIN_MATH1(round)
TWIN_MATH1(rint)
TWIN_MATH2(fmax)
TWIN_MATH2(fmin)
TWIN_MATH2(pow)
TWIN_MATH2(fmod)
TWIN_MATH2(copysign)
TWIN_MATH2(atan2)
TWIN_MATH2(hypot)
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
#define TWIN_ROUNDED(prefix, T)                           \
  inline T __##prefix##add_rn(T x, T y) { return x + y; } \
  inline T __##prefix##sub_rn(T x, T y) { return x - y; } \
  inline T __##prefix##mul_rn(T x, T y) { return x * y; } \
  inline T __##prefix##div_rn(T x, T y) { return x / y; }
TWIN_ROUNDED(f, float)
TWIN_ROUNDED(d, double)
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

#define TWIN_CLASSIFY(T)                                     \
  inline bool isnan(T x) { return __builtin_isnan(x); }      \
  inline bool isinf(T x) { return __builtin_isinf(x) != 0; } \
  inline bool isfinite(T x) { return __builtin_isfinite(x); }
TWIN_CLASSIFY(float)
TWIN_CLASSIFY(double)
#define TWIN_ORDERED(T)                            \
  inline T min(T x, T y) { return y < x ? y : x; } \
  inline T max(T x, T y) { return x < y ? y : x; }
TWIN_ORDERED(int)
TWIN_ORDERED(unsigned)
TWIN_ORDERED(long)
TWIN_ORDERED(unsigned long)
TWIN_ORDERED(long long)
TWIN_ORDERED(unsigned long long)
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }

#include "checks.h"

// Entries run outside of the kernel: their memory belongs to the driver.
#define TWIN_UNCHECKED __attribute__((no_sanitize("thread", "undefined")))

namespace twin {

template <class T>
constexpr char kind_of() {
  if constexpr (__is_class(T)) {
    return 's';
  } else if constexpr (__is_enum(T)) {
    return 'i';
  } else {
    return T(0.5) != T(0) ? 'f' : T(-1) < T(0) ? 'i' : 'u';
  }
}

template <class T>
struct ParameterOf {
  static constexpr Parameter value = {kind_of<T>(), sizeof(T)};
};
template <class T>
struct ParameterOf<T*> {
  static constexpr Parameter value = {'p', sizeof(T*)};
};

template <int... I>
struct Indices {};

template <class... A>
struct Signature {
  static constexpr Parameter parameters[sizeof...(A) + 1] = {ParameterOf<A>::value..., {'\0', 0}};
  template <int... I>
  TWIN_UNCHECKED static void call(void (*kernel)(A...), void** values, Indices<I...>) {
    kernel(*static_cast<A*>(values[I])...);
  }
};

template <auto kernel>
struct Entry;
template <class... A, void (*kernel)(A...)>
struct Entry<kernel> {
  TWIN_UNCHECKED static void run(void** values) {
    Signature<A...>::call(kernel, values, Indices<__integer_pack(sizeof...(A))...>{});
  }
  static constexpr Kernel describe(const char* name, int max_threads) {
    return {name, run, Signature<A...>::parameters, sizeof...(A), max_threads};
  }
};

}  // namespace twin
