// exp, log, tanh and sigmoid of vectors. float: at most 2e-7 absolute for tanh and sigmoid, about
// 2 ulp for exp and log. double: about 1e-15 relative. Infinities give the limits, NaN stays NaN,
// large arguments saturate.
#pragma once

#include "kernels/isa_vector.h"

namespace cavs::CAVS_ISA {
namespace {

template <class T>
CAVS_INLINE IntVector<T> bits(Vector<T> x) {
  return (IntVector<T>)x;
}
template <class T>
CAVS_INLINE Vector<T> from_bits(IntVector<T> x) {
  return (Vector<T>)x;
}

// Horner's rule; coefficients from the highest power down.
template <class T, int N>
CAVS_INLINE Vector<T> polynomial(Vector<T> x, const T (&coefficients)[N]) {
  Vector<T> y = broadcast(coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < N; ++i) y = y * x + coefficients[i];
  return y;
}

template <class T>
struct MathConstants;
template <>
struct MathConstants<float> {
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer in the low bits
  static constexpr float kExpLow = -104.f, kExpHigh = 89.f;
  static constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  static constexpr float kSmallest = 0x1p-126f, kTiny = 0x1p25f;
  static constexpr int kTinyShift = 25;
  static constexpr float kSqrtHalf = 0.70710678f;
};
template <>
struct MathConstants<double> {
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kExpLow = -746., kExpHigh = 710.;
  static constexpr double kLog2E = 1.4426950408889634, kLn2High = 0x1.62e42feep-1,
                          kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kSmallest = 0x1p-1022, kTiny = 0x1p54;
  static constexpr int kTinyShift = 54;
  static constexpr double kSqrtHalf = 0.7071067811865476;
};

// x * 2^n for n in [-2^10, 2^10], in two steps so that the result may be denormal or infinite.
template <class T>
CAVS_INLINE Vector<T> scale(Vector<T> x, IntVector<T> n) {
  using C = MathConstants<T>;
  const IntVector<T> half = n >> 1, rest = n - half;
  return x * from_bits<T>((half + C::kBias) << C::kMantissa) *
         from_bits<T>((rest + C::kBias) << C::kMantissa);
}

// x = n ln 2 + r with |r| <= ln 2 / 2.
template <class T>
CAVS_INLINE Vector<T> reduce(Vector<T> x, IntVector<T>& n) {
  using C = MathConstants<T>;
  const Vector<T> shifted = x * C::kLog2E + C::kRound;
  n = bits<T>(shifted) - bits<T>(broadcast(C::kRound));
  const Vector<T> rounded = shifted - C::kRound;
  return (x - rounded * C::kLn2High) - rounded * C::kLn2Low;
}

// (exp(r) - 1 - r) / r^2 for |r| <= ln 2 / 2.
CAVS_INLINE Vector<float> exp_tail(Vector<float> r) {
  constexpr float c[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                         4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  return polynomial<float>(r, c);
}
CAVS_INLINE Vector<double> exp_tail(Vector<double> r) {
  constexpr double c[] = {1. / 6227020800., 1. / 479001600., 1. / 39916800., 1. / 3628800.,
                          1. / 362880.,     1. / 40320.,     1. / 5040.,     1. / 720.,
                          1. / 120.,        1. / 24.,        1. / 6.,        0.5};
  return polynomial<double>(r, c);
}

template <class T>
CAVS_INLINE Vector<T> exponential(Vector<T> x) {
  using C = MathConstants<T>;
  x = x > C::kExpHigh ? broadcast(C::kExpHigh) : x;
  x = x < C::kExpLow ? broadcast(C::kExpLow) : x;
  IntVector<T> n;
  const Vector<T> r = reduce<T>(x, n);
  return scale<T>(exp_tail(r) * r * r + r + T(1), n);
}

// x = m 2^n with m in [sqrt(1/2), sqrt(2)); x > 0 and finite.
template <class T>
CAVS_INLINE Vector<T> split_exponent(Vector<T> x, Vector<T>& n) {
  using C = MathConstants<T>;
  const auto denormal = x < C::kSmallest;
  x = denormal ? x * C::kTiny : x;
  // Counting from sqrt(1/2) makes the mantissa of that interval come out in one subtraction.
  const IntVector<T> root = bits<T>(broadcast(C::kSqrtHalf));
  const IntVector<T> shift = (bits<T>(x) - root) >> C::kMantissa;
  const IntVector<T> m = bits<T>(x) - (shift << C::kMantissa);
  n = __builtin_convertvector(shift - (denormal & C::kTinyShift), Vector<T>);
  return from_bits<T>(m);
}

CAVS_INLINE Vector<float> log_of_parts(Vector<float> m, Vector<float> n) {
  constexpr float c[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                         -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                         2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  using C = MathConstants<float>;
  const Vector<float> f = m - 1.f, z = f * f;
  return (polynomial<float>(f, c) * f * z + n * C::kLn2Low - 0.5f * z + f) + n * C::kLn2High;
}
CAVS_INLINE Vector<double> log_of_parts(Vector<double> m, Vector<double> n) {
  constexpr double c[] = {1.479819860511658591e-1, 1.531383769920937332e-1, 1.818357216161805012e-1,
                          2.222219843214978396e-1, 2.857142874366239149e-1, 3.999999999940941908e-1,
                          6.666666666666735130e-1};
  using C = MathConstants<double>;
  const Vector<double> f = m - 1., s = f / (2. + f), z = s * s, half = 0.5 * f * f;
  const Vector<double> rest = polynomial<double>(z, c) * z;
  return n * C::kLn2High - ((half - (s * (half + rest) + n * C::kLn2Low)) - f);
}

template <class T>
CAVS_INLINE Vector<T> logarithm(Vector<T> x) {
  const T infinity = static_cast<T>(__builtin_inf());
  Vector<T> n;
  const Vector<T> m = split_exponent<T>(x, n);
  Vector<T> y = log_of_parts(m, n);
  y = x == infinity ? x : y;
  y = x == T(0) ? broadcast(-infinity) : y;
  return (x < T(0)) | (x != x) ? broadcast(static_cast<T>(__builtin_nan(""))) : y;
}

// A 9/8 rational minimax fit on [-9.02, 9.02], 2.1e-8 relative before rounding; beyond, tanh is 1
// to the last bit.
CAVS_INLINE Vector<float> hyperbolic_tangent(Vector<float> x) {
  constexpr float p[] = {1.33189723e-08f, 2.05834072e-05f, 3.49403003e-03f, 1.33797141e-01f,
                         9.99999979e-01f};
  constexpr float q[] = {7.76197794e-07f, 3.28308544e-04f, 2.58710560e-02f, 4.67130294e-01f, 1.f};
  x = x > 9.02f ? broadcast(9.02f) : x;
  x = x < -9.02f ? broadcast(-9.02f) : x;
  const Vector<float> z = x * x;
  Vector<float> y = x * polynomial<float>(z, p) / polynomial<float>(z, q);
  y = y > 1.f ? broadcast(1.f) : y;
  return y < -1.f ? broadcast(-1.f) : y;
}
// With e = exp(2|x|) - 1, tanh |x| = e / (e + 2): nothing cancels.
CAVS_INLINE Vector<double> hyperbolic_tangent(Vector<double> x) {
  const IntVector<double> sign = bits<double>(x) & bits<double>(broadcast(-0.));
  Vector<double> twice = 2. * from_bits<double>(bits<double>(x) ^ sign);
  twice = twice > 40. ? broadcast(40.) : twice;
  IntVector<double> n;
  const Vector<double> r = reduce<double>(twice, n);
  const Vector<double> power = scale<double>(broadcast(1.), n);
  const Vector<double> e = power * (exp_tail(r) * r * r + r) + (power - 1.);
  return from_bits<double>(bits<double>(e / (e + 2.)) | sign);
}

template <class T>
CAVS_INLINE Vector<T> sigmoid(Vector<T> x) {
  return T(1) / (T(1) + exponential<T>(-x));
}

}  // namespace
}  // namespace cavs::CAVS_ISA
