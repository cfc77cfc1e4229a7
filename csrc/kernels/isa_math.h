// exp, log, tanh, sigmoid, sin and cos of vectors. float: at most 2e-7 absolute for tanh, sigmoid,
// sin and cos, about 2 ulp for exp and log. double: about 1e-15 relative, for sin and cos absolute.
// Infinities give the limits (NaN for sin and cos), NaN stays NaN, large arguments saturate.
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

// a - b of bit patterns: NaN and negative arguments may wrap round.
template <class T>
CAVS_INLINE IntVector<T> wrapping_difference(IntVector<T> a, IntVector<T> b) {
  using Unsigned = typename VectorTypes<T>::UnsignedVector;
  return (IntVector<T>)((Unsigned)a - (Unsigned)b);
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
  static constexpr float kTwoOverPi = 0.636619772f;
  // pi / 2 in three parts. Products of the first two with a quadrant are exact up to kMostAngle.
  static constexpr float kHalfPi[] = {0x1.92p0f, 0x1.fb4p-12f, 0x1.4442d2p-24f};
  static constexpr float kMostAngle = 8192;
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
  static constexpr double kTwoOverPi = 0.6366197723675814;
  static constexpr double kHalfPi[] = {0x1.921fb544p0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};
  static constexpr double kMostAngle = 0x1p20;
};

// x = n ln 2 + r with |r| <= ln 2 / 2.
template <class T>
struct Reduced {
  Vector<T> r, n, shifted;
};
template <class T>
CAVS_INLINE Reduced<T> reduce(Vector<T> x) {
  using C = MathConstants<T>;
  // The sum rounds to an integer and leaves n plus the exponent's bias in its lowest bits.
  constexpr T magic = C::kRound + C::kBias;
  const Vector<T> shifted = x * C::kLog2E + magic, n = shifted - magic;
  return {(x - n * C::kLn2High) - n * C::kLn2Low, n, shifted};
}
// 2^n for normal results and 2^(largest exponent + 1), which is infinity.
template <class T>
CAVS_INLINE Vector<T> power_of_two(const Reduced<T>& x) {
  return from_bits<T>(bits<T>(x.shifted) << MathConstants<T>::kMantissa);
}
// y * 2^n, also where that is denormal.
template <class T>
CAVS_INLINE Vector<T> scale(Vector<T> y, const Reduced<T>& x) {
#if CAVS_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_scalef_ps(0xffff, y, x.n);
  else
    return _mm512_maskz_scalef_pd(0xff, y, x.n);
#else
  using C = MathConstants<T>;
  const IntVector<T> n =
      wrapping_difference<T>(bits<T>(x.shifted), bits<T>(broadcast(C::kRound + C::kBias)));
  const IntVector<T> half = n >> 1, rest = n - half;
  return y * from_bits<T>((half + C::kBias) << C::kMantissa) *
         from_bits<T>((rest + C::kBias) << C::kMantissa);
#endif
}

// (exp(r) - 1) / r for |r| <= ln 2 / 2; float: a minimax fit, 3e-9 of exp(r) before rounding.
CAVS_INLINE Vector<float> exp_slope(Vector<float> r) {
  constexpr float c[] = {0x1.6a2448p-10f, 0x1.1239d6p-7f, 0x1.5558f2p-5f,
                         0x1.555492p-3f,  0x1.fffffcp-2f, 1.f};
  return polynomial<float>(r, c);
}
CAVS_INLINE Vector<double> exp_slope(Vector<double> r) {
  constexpr double c[] = {1. / 6227020800.,
                          1. / 479001600.,
                          1. / 39916800.,
                          1. / 3628800.,
                          1. / 362880.,
                          1. / 40320.,
                          1. / 5040.,
                          1. / 720.,
                          1. / 120.,
                          1. / 24.,
                          1. / 6.,
                          0.5,
                          1.};
  return polynomial<double>(r, c);
}

template <class T>
CAVS_INLINE Vector<T> exponential(Vector<T> x) {
  using C = MathConstants<T>;
  const Reduced<T> parts = reduce<T>(clamp<T>(x, C::kExpLow, C::kExpHigh));
  return scale<T>(exp_slope(parts.r) * parts.r + T(1), parts);
}

// x = m 2^n with m in [sqrt(1/2), sqrt(2)); x > 0 and finite.
template <class T>
CAVS_INLINE Vector<T> split_exponent(Vector<T> x, Vector<T>& n) {
  using C = MathConstants<T>;
  const auto denormal = x < C::kSmallest;
  x = denormal ? x * C::kTiny : x;
  // Counting from sqrt(1/2) makes the mantissa of that interval come out in one subtraction.
  const IntVector<T> root = bits<T>(broadcast(C::kSqrtHalf));
  const IntVector<T> shift = wrapping_difference<T>(bits<T>(x), root) >> C::kMantissa;
  const IntVector<T> m = wrapping_difference<T>(bits<T>(x), shift << C::kMantissa);
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

// With u = tanh(x / 2) = n / d, tanh(x) = 2 n d / (n^2 + d^2): rounding errors of n and d vanish
// where tanh is near 1, and one division is enough. n / d is a rational minimax fit (x P2(x^2) /
// Q3(x^2)) good to 7e-9 of tanh(x) on [-9.02, 9.02]; beyond, tanh is 1 to the last bit.
CAVS_INLINE Vector<float> hyperbolic_tangent(Vector<float> x) {
  constexpr float p[] = {0x1.616dc4p-14f, 0x1.67fe4cp-6f, 0x1.79e614p-1f};
  constexpr float q[] = {0x1.e65aa2p-20f, 0x1.d2b83cp-10f, 0x1.55ee42p-3f, 0x1.79e614p+0f};
  x = clamp<float>(x, -9.02f, 9.02f);
  const Vector<float> z = x * x;
  const Vector<float> n = x * polynomial<float>(z, p), d = polynomial<float>(z, q);
  const Vector<float> y = (n + n) * d / (n * n + d * d);
#if defined(__FMA__)
  return y;
#else
  return clamp<float>(y, -1.f, 1.f);  // with every product rounded separately, y can be 1 + 2^-23
#endif
}
// With e = exp(2|x|) - 1, tanh |x| = e / (e + 2): nothing cancels.
CAVS_INLINE Vector<double> hyperbolic_tangent(Vector<double> x) {
  const IntVector<double> sign = bits<double>(x) & bits<double>(broadcast(-0.));
  const Vector<double> magnitude = from_bits<double>(bits<double>(x) ^ sign);
  const Reduced<double> parts = reduce<double>(clamp<double>(2. * magnitude, 0., 40.));
  const Vector<double> r = parts.r, power = power_of_two(parts);
  const Vector<double> e = power * (exp_slope(r) * r) + (power - 1.);
  return from_bits<double>(bits<double>(e / (e + 2.)) | sign);
}

// 1 / (1 + 2^t) with t = -x / ln 2. Rounding of t costs relative accuracy far from zero, where
// sigmoid is flat: no absolute accuracy is lost.
CAVS_INLINE Vector<float> sigmoid(Vector<float> x) {
  const Vector<float> t = x * -MathConstants<float>::kLog2E;
#if CAVS_VECTOR_BYTES == 64
  // 2^f of the fraction f in [0, 1), a minimax fit good to 8.3e-8.
  constexpr float c[] = {0x1.e974fap-10f, 0x1.277856p-7f, 0x1.c91ce6p-5f,
                         0x1.ebdb56p-3f,  0x1.62e4bap-1f, 1.f};
  constexpr int kFraction = 1;  // t - floor(t)
  const Vector<float> f = _mm512_maskz_reduce_ps(0xffff, t, kFraction);
  return 1.f / (1.f + _mm512_maskz_scalef_ps(0xffff, polynomial<float>(f, c), t));
#else
  // 2^f for |f| <= 1/2, good to 9.2e-8; t = 128 makes the power infinite.
  constexpr float c[] = {0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f,
                         0x1.ebf9bcp-3f,  0x1.62e42ap-1f, 1.f};
  using C = MathConstants<float>;
  constexpr float magic = C::kRound + C::kBias;
  const Vector<float> inside = clamp<float>(t, -126.f, 128.f);
  const Vector<float> shifted = inside + magic, f = inside - (shifted - magic);
  const Vector<float> power = from_bits<float>(bits<float>(shifted) << C::kMantissa);
  return 1.f / (1.f + polynomial<float>(f, c) * power);
#endif
}
CAVS_INLINE Vector<double> sigmoid(Vector<double> x) {
  const Reduced<double> parts = reduce<double>(clamp<double>(-x, -708., 709.7));
  return 1. / (1. + (exp_slope(parts.r) * parts.r + 1.) * power_of_two(parts));
}

// sin(r) and cos(r) for |r| <= pi / 4, minimax fits of Cephes and fdlibm.
CAVS_INLINE Vector<float> sine_near_zero(Vector<float> r) {
  constexpr float c[] = {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f};
  const Vector<float> z = r * r;
  return polynomial<float>(z, c) * z * r + r;
}
CAVS_INLINE Vector<double> sine_near_zero(Vector<double> r) {
  constexpr double c[] = {1.58969099521155010221e-10, -2.50507602534068634195e-8,
                          2.75573137070700676789e-6,  -1.98412698298579493134e-4,
                          8.33333333332248946124e-3,  -1.66666666666666324348e-1};
  const Vector<double> z = r * r;
  return polynomial<double>(z, c) * z * r + r;
}
CAVS_INLINE Vector<float> cosine_near_zero(Vector<float> r) {
  constexpr float c[] = {2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f};
  const Vector<float> z = r * r;
  return polynomial<float>(z, c) * z * z + (1.f - 0.5f * z);
}
CAVS_INLINE Vector<double> cosine_near_zero(Vector<double> r) {
  constexpr double c[] = {-1.13596475577881948265e-11, 2.08757232129817482790e-9,
                          -2.75573143513906633035e-7,  2.48015872894767294178e-5,
                          -1.38888888888741095749e-3,  4.16666666666666019037e-2};
  const Vector<double> z = r * r;
  return polynomial<double>(z, c) * z * z + (1. - 0.5 * z);
}

// sin(x + Ahead * pi / 2). Lanes beyond kMostAngle are computed one by one by the C library.
template <class T, int Ahead>
CAVS_INLINE Vector<T> sinusoid(Vector<T> x) {
  using C = MathConstants<T>;
  const Vector<T> shifted = x * C::kTwoOverPi + C::kRound, n = shifted - C::kRound;
  const Vector<T> r = ((x - n * C::kHalfPi[0]) - n * C::kHalfPi[1]) - n * C::kHalfPi[2];
  const IntVector<T> quadrant = bits<T>(shifted) + Ahead;
  Vector<T> y = (quadrant & 1) != 0 ? cosine_near_zero(r) : sine_near_zero(r);
  constexpr int kSign = 8 * static_cast<int>(sizeof(T)) - 2;
  y = from_bits<T>(bits<T>(y) ^ ((quadrant & 2) << kSign));
  const Vector<T> magnitude = x < T(0) ? -x : x;
  if (max_of_lanes<T>(magnitude > C::kMostAngle ? magnitude : Vector<T>{})[0] > T(0)) {
    for (int i = 0; i < kLanes<T>; ++i) {
      if (magnitude[i] <= C::kMostAngle) continue;
      const double angle = static_cast<double>(x[i]);
      y[i] = static_cast<T>(Ahead != 0 ? __builtin_cos(angle) : __builtin_sin(angle));
    }
  }
  return y;
}
template <class T>
CAVS_INLINE Vector<T> sine(Vector<T> x) {
  return sinusoid<T, 0>(x);
}
template <class T>
CAVS_INLINE Vector<T> cosine(Vector<T> x) {
  return sinusoid<T, 1>(x);
}

}  // namespace
}  // namespace cavs::CAVS_ISA
