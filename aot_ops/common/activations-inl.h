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

// x = n ln2 + r, |r| <= ln2 / 2, for |x| < 2^15: n by adding 1.5 * 2^23 + kBias, which leaves n + kBias in the low bits
// of `biased`. ln2 in two parts, the first of few bits: n times it is exact, with and without FMA.
template <class V> struct Reduced { V biased, n, r; };
template <int kBias, class D, class V = hn::Vec<D>> HWY_INLINE Reduced<V> Reduce(D d, V x) {
  const V magic = hn::Set(d, 12582912.0f + kBias);
  const V biased = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(biased, magic);
  const V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  return {biased, n, hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r)};
}

// e^(kSign r) for |r| <= ln2 / 2, relative error 3.1e-9 before rounding: minimax, the first two coefficients held at 1.
template <int kSign, class D, class V = hn::Vec<D>> HWY_INLINE V SmallExp(D d, V r) {
  constexpr float s = kSign;
  return Polynomial(d, r, 1.381458482e-3f, s * 8.368724026e-3f, 4.166838899e-2f, s * 1.666652113e-1f, 4.999999404e-1f,
                    s * 1.0f, 1.0f);
}

// e^x, at most 1 ulp on [-87.3, 88.7]; smaller x give 0, larger inf; NaN stays NaN.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Exp(D d, V x) {
  const auto t = Reduce<0>(d, Clamp(d, x, -87.33655f, 89.0f));
  const V e = SmallExp<1>(d, t.r);
  const auto normal = hn::Not(hn::Lt(x, hn::Set(d, -87.33655f)));
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_maskz_scalef_ps(normal.raw, e.raw, t.n.raw)};
#else
  // Added to the exponent, which holds the result where it is finite; Inf and NaN by x + inf.
  const hn::RebindToSigned<D> di;
  const V y = hn::BitCast(d, hn::Add(hn::BitCast(di, e), hn::ShiftLeft<23>(hn::BitCast(di, t.biased))));
  const V beyond = hn::Add(x, hn::Set(d, HUGE_VALF));
  return hn::IfThenElseZero(normal, hn::IfThenElse(hn::Le(x, hn::Set(d, 88.72283f)), y, beyond));
#endif
}

// The logistic function by parts: e^z = s / q, so that 1 / (1 + e^-z) = s / (s + q) and 1 / (1 + e^z) = q / (s + q),
// both without cancellation. s = 2^n is made of its exponent's bits: |z| <= 88.02, and 0 for z < -87.68. T, what the
// result will be stored as: 3e-6 is enough for 11 bits, with ln2 in one part.
template <class V> struct LogisticParts { V s, q; };
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE LogisticParts<V> Logistic(D d, V z) {
  const hn::RebindToSigned<D> di;
  if constexpr (std::is_same_v<T, float>) {
    const auto t = Reduce<127>(d, z);
    return {hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, t.biased))), SmallExp<-1>(d, t.r)};
  } else {
    const V magic = hn::Set(d, 12582912.0f + 127);
    const V biased = hn::MulAdd(z, hn::Set(d, 1.44269504088896341f), magic);
    const V r = hn::NegMulAdd(hn::Sub(biased, magic), hn::Set(d, 0.69314718056f), z);
    return {hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, biased))),
            Polynomial(d, r, 4.151374102e-2f, -1.678752154e-1f, 5.000301600e-1f, -9.999668002e-1f, 1.0f)};
  }
}
constexpr float kLogisticRange = 88.0f;

// 1 / (1 + e^-x), 0 for x < -87.68.
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE V Sigmoid(D d, V x) {
  const auto p = Logistic<T>(d, Clamp(d, x, -kLogisticRange, kLogisticRange));
  return hn::Div(p.s, hn::Add(p.s, p.q));
}

// x / (1 + e^-x), 0 for x < -87.68; x = -inf gives NaN, as -inf / inf does and PyTorch and NumPy do.
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE V Silu(D d, V x) {
  return hn::Mul(x, Sigmoid<T>(d, x));
}

// SiLU and its derivative s (1 + x (1 - s)), s the logistic function. The derivative is 0 and 1 at -inf and inf.
template <class V> struct WithSlope { V y, slope; };
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE WithSlope<V> SiluWithSlope(D d, V x) {
  const V one = hn::Set(d, 1.0f), z = Clamp(d, x, -kLogisticRange, kLogisticRange);
  const auto p = Logistic<T>(d, z);
  const V inverse = hn::Div(one, hn::Add(p.s, p.q)), sigmoid = hn::Mul(p.s, inverse);
  return {hn::Mul(x, sigmoid), hn::Mul(sigmoid, hn::MulAdd(z, hn::Mul(p.q, inverse), one))};
}

// tanh x as the quotient p(x) / q(x) of Eigen's float tanh, within 3e-7 relative; x itself near
// zero.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Tanh(D d, V v) {
  const V x = Clamp(d, v, -7.90531110763549805f, 7.90531110763549805f);
  const V s = hn::Mul(x, x);
  const V p = Polynomial(d, s, -2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                         5.12229709037114e-08f, 1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f);
  const V q =
      Polynomial(d, s, 1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f);
  const V y = hn::Div(hn::Mul(x, p), q);
  return hn::IfThenElse(hn::Lt(hn::Abs(v), hn::Set(d, 4e-4f)), v, y);
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
