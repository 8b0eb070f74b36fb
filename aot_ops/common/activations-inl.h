// Vector exp, sigmoid, tanh and erf in float32, per SIMD target.
#if defined(OPGRAFT_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ACTIVATIONS_INL_H_
#undef OPGRAFT_ACTIVATIONS_INL_H_
#else
#define OPGRAFT_ACTIVATIONS_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// c0 x^n + ... + cn by Horner's rule, highest power first.
template <class D, class V = hn::Vec<D>, class... Rest> HWY_INLINE V Polynomial(D d, V x, float c0, Rest... rest) {
  V p = hn::Set(d, c0);
  ((p = hn::MulAdd(p, x, hn::Set(d, rest))), ...);
  return p;
}

// Into [low, high]; a NaN stays itself: x86's min and max give the second operand where one is NaN.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Clamp(D d, V x, float low, float high) {
  return hn::Min(hn::Set(d, high), hn::Max(hn::Set(d, low), x));
}

// Powers of two with a fraction of kFractionBits bits, by a permutation of one vector; SSE4 has none and no fraction.
#if HWY_TARGET == HWY_AVX3
constexpr int kFractionBits = 4;
#elif HWY_TARGET == HWY_AVX2
constexpr int kFractionBits = 3;
#else
constexpr int kFractionBits = 0;
#endif
// 2^(i/16)
alignas(64) constexpr float kFractions[16] = {
    1.0f,         1.044273782f, 1.090507733f, 1.138788635f, 1.189207115f, 1.241857812f, 1.296839555f, 1.354255547f,
    1.414213562f, 1.476826146f, 1.542210825f, 1.610490332f, 1.681792831f, 1.756252160f, 1.834008086f, 1.915206561f};

// x = n ln2 + r for |x| < 2^15, n with kFractionBits: by adding 1.5 * 2^(23 - kFractionBits), which leaves n in the low
// bits of `biased`. |r| <= ln2 / 2 >> kFractionBits. kExact: ln2 in two parts, the first of few bits, so that n times
// it is exact, with and without FMA; else in one, which with FMA costs |x| / 20 roundings.
template <class V> struct Reduced { V biased, n, r; };
template <bool kExact, class D, class V = hn::Vec<D>> HWY_INLINE Reduced<V> Reduce(D d, V x) {
  const V magic = hn::Set(d, 12582912.0f / (1 << kFractionBits));
  const V biased = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(biased, magic);
  if constexpr (!kExact) return {biased, n, hn::NegMulAdd(n, hn::Set(d, 0.69314718056f), x)};
  const V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  return {biased, n, hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r)};
}
// The element of `table`, 1 << kFractionBits of them, that the fraction of n chooses.
template <class D, class V = hn::Vec<D>> HWY_INLINE V ByFraction(D, V table, V biased) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_permutexvar_ps(_mm512_castps_si512(biased.raw), table.raw)};
#elif HWY_TARGET == HWY_AVX2
  return V{_mm256_permutevar8x32_ps(table.raw, _mm256_castps_si256(biased.raw))};
#else
  return table;
#endif
}
template <class D, class V = hn::Vec<D>> HWY_INLINE V Fractions(D d) {
#if HWY_TARGET == HWY_AVX3
  return hn::Load(d, kFractions);
#elif HWY_TARGET == HWY_AVX2
  return hn::ConcatEven(d, hn::Load(d, kFractions + 8), hn::Load(d, kFractions));
#else
  return hn::Set(d, 1.0f);
#endif
}
// 2^n by its exponent, which must hold it; n = -127 makes 0. The bits of n lie where the exponent does, those of its
// fraction below it: the table is without them.
template <class D, class V = hn::Vec<D>> HWY_INLINE V PowerOfTwo(D d, V biased) {
  const hn::RebindToSigned<D> di;
  auto table = hn::BitCast(di, Fractions(d));
  if constexpr (kFractionBits > 0) table = hn::Sub(table, hn::ShiftLeft<23 - kFractionBits>(hn::Iota(di, 0)));
  const auto fraction = hn::BitCast(di, ByFraction(d, hn::BitCast(d, table), biased));
  return hn::BitCast(d, hn::Add(fraction, hn::ShiftLeft<23 - kFractionBits>(hn::BitCast(di, biased))));
}

// (e^(kSign r) - 1) / r, the relative error of 1 + r times it at most 2.6e-8 (SSE4 3.1e-9, AVX-512 1.6e-9), 3.5e-6 for
// half types. Minimax; the last coefficient but for half types, and the 1, are held.
template <int kSign, class T, class D, class V = hn::Vec<D>> HWY_INLINE V ExpSlope(D d, V r) {
  constexpr float s = kSign;
  constexpr bool kHalf = !std::is_same_v<T, float>;
  if constexpr (kFractionBits == 4 && kHalf) return Polynomial(d, r, 4.999998510e-1f, s * 1.000058532f);
  else if constexpr (kFractionBits == 4) return Polynomial(d, r, s * 1.666671783e-1f, 5.000161529e-1f, s * 1.0f);
  else if constexpr (kFractionBits == 3 && kHalf) return Polynomial(d, r, 4.999986887e-1f, s * 1.000233531f);
  else if constexpr (kFractionBits == 3) return Polynomial(d, r, s * 1.666685790e-1f, 5.000645518e-1f, s * 1.0f);
  else if constexpr (kHalf)
    return Polynomial(d, r, 4.151374102e-2f, s * 1.678752154e-1f, 5.000301600e-1f, s * 9.999668002e-1f);
  else
    return Polynomial(d, r, 1.381458482e-3f, s * 8.368724026e-3f, 4.166838899e-2f, s * 1.666652113e-1f, 4.999999404e-1f,
                      s * 1.0f);
}
template <int kSign, class T, class D, class V = hn::Vec<D>> HWY_INLINE V SmallExp(D d, V r) {
  return hn::MulAdd(ExpSlope<kSign, T>(d, r), r, hn::Set(d, 1.0f));
}

// e^x, at most 2 ulp on [-87.3, 88.7]; smaller x give 0, larger inf; NaN stays NaN.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Exp(D d, V x) {
  const auto t = Reduce<true>(d, Clamp(d, x, -87.33655f, 89.0f));
  V e = SmallExp<1, float>(d, t.r);
  if constexpr (kFractionBits > 0) e = hn::Mul(e, ByFraction(d, Fractions(d), t.biased));
  const auto normal = hn::Not(hn::Lt(x, hn::Set(d, -87.33655f)));
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_maskz_scalef_ps(normal.raw, e.raw, t.n.raw)};
#else
  // 2^n alone may be too large for an exponent, its product with e below 1 not. Inf and NaN by x + inf.
  const hn::RebindToSigned<D> di;
  const auto whole = hn::And(hn::BitCast(di, t.biased), hn::Set(di, -(1 << kFractionBits)));
  e = hn::BitCast(d, hn::Add(hn::BitCast(di, e), hn::ShiftLeft<23 - kFractionBits>(whole)));
  const V beyond = hn::Add(x, hn::Set(d, HUGE_VALF));
  const V y = hn::IfThenElse(hn::Le(x, hn::Set(d, 88.72283f)), e, beyond);
  return hn::IfThenElseZero(normal, y);
#endif
}

constexpr float kLogisticRange = 88.0297f;  // 127 ln2, so that 2^n is 0 and no less at its end

// e^x for x <= 0, within (1.75 + |x| / 15) 2^-24; between 0 and 2^-126 for x < -87.33, 0 for x <= -88.03; NaN
// stays NaN.
template <class D, class V = hn::Vec<D>> HWY_INLINE V ExpBelow0(D d, V x) {
  // In this order: x86's max gives the second where one is NaN.
  const auto t = Reduce<kFractionBits == 0>(d, hn::Max(hn::Set(d, -kLogisticRange), x));
  const V power = PowerOfTwo(d, t.biased);
  return hn::MulAdd(hn::Mul(ExpSlope<1, float>(d, t.r), t.r), power, power);  // what is small is rounded first
}

// The logistic function by parts: e^z = s / q, so that 1 / (1 + e^-z) = s / (s + q) and 1 / (1 + e^z) = q / (s + q),
// both without cancellation. s = 2^n: |z| <= 88.03; below -87.33 it is not normal, and 0 for n = -127. T, what the
// result will be stored as: 3.7e-6 is enough for 11 bits.
template <class V> struct LogisticParts { V s, q; };
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE LogisticParts<V> Logistic(D d, V z) {
  const auto t = Reduce<std::is_same_v<T, float>>(d, z);
  return {PowerOfTwo(d, t.biased), SmallExp<-1, T>(d, t.r)};
}
// 124 ln2, where 1 / (s + q) is normal yet: a host may have set subnormal numbers to be zeros, as MindSpore's graphs
// do.
constexpr float kLogisticMost = 85.9502563f;

// 1 / (1 + e^-x); between 0 and 2^-126 for x < -87.33, 0 for x <= -88.03.
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE V Sigmoid(D d, V x) {
  const auto p = Logistic<T>(d, Clamp(d, x, -kLogisticRange, kLogisticRange));
  return hn::Div(p.s, hn::Add(p.s, p.q));
}

// x / (1 + e^-x), off by up to 2^-120 for x < -87.33; x = -inf gives NaN, as -inf / inf does and PyTorch and NumPy do.
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE V Silu(D d, V x) {
  return hn::Mul(x, Sigmoid<T>(d, x));
}

// SiLU and its derivative s (1 + x (1 - s)), s the logistic function. The derivative is 0 and 1 at -inf and inf.
template <class V> struct WithSlope { V y, slope; };
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE WithSlope<V> SiluWithSlope(D d, V x) {
  const V one = hn::Set(d, 1.0f), z = Clamp(d, x, -kLogisticRange, kLogisticMost);
  const auto p = Logistic<T>(d, z);
  const V inverse = hn::Div(one, hn::Add(p.s, p.q)), sigmoid = hn::Mul(p.s, inverse);
  return {hn::Mul(x, sigmoid), hn::Mul(sigmoid, hn::MulAdd(z, hn::Mul(p.q, inverse), one))};
}

// tanh x as the quotient p(x) / q(x) of Eigen's float tanh, within 3e-7 relative; x itself near zero, and -1 or 1 where
// that is nearest: 1 - tanh x is less than 2^-25 beyond 9.02.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Tanh(D d, V v) {
  const V x = Clamp(d, v, -7.90531110763549805f, 7.90531110763549805f);
  const V s = hn::Mul(x, x);
  const V p = Polynomial(d, s, -2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                         5.12229709037114e-08f, 1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f);
  const V q =
      Polynomial(d, s, 1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f);
  const V far = hn::Abs(v), y = hn::Div(hn::Mul(x, p), q);
  const V most = hn::IfThenElse(hn::Gt(far, hn::Set(d, 9.02f)), hn::CopySign(hn::Set(d, 1.0f), v), y);
  return hn::IfThenElse(hn::Lt(far, hn::Set(d, 4e-4f)), v, most);
}

// erf x as the quotient p(x) / q(x) of Eigen's float erf, within 3.5e-7, nearly all of it rounding, and
// never beyond -1 or 1.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Erf(D d, V v) {
  const V x = Clamp(d, v, -4.0f, 4.0f);
  const V s = hn::Mul(x, x);
  const V p =
      Polynomial(d, s, -2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f, -5.69250639462346e-05f,
                 -7.34990630326855e-04f, -2.95459980854025e-03f, -1.60960333262415e-02f);
  const V q = Polynomial(d, s, -1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f,
                         -7.37332916720468e-03f, -1.42647390514189e-02f);
  return Clamp(d, hn::Div(hn::Mul(x, p), q), -1.0f, 1.0f);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
