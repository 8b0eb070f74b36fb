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

// e^x, at most 2 ulp on [-87.3, 88.7]; smaller x give 0, larger inf; NaN stays NaN.
// x = n ln2 + r, |r| <= ln2 / 2; e^r by the degree-6 polynomial of Cephes expf.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V clamped = hn::Min(hn::Max(x, hn::Set(d, -87.5f)), hn::Set(d, 88.8f));
  const V n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504088896341f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  const V p = Polynomial(d, r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                         5.0000001201e-1f);
  const V e = hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), hn::Set(d, 1.0f));
  // 2^n in two halves: n reaches 128 and -126 - 1, which one exponent field cannot hold.
  const auto i = hn::ConvertTo(di, n);
  const auto h = hn::ShiftRight<1>(i);
  const V s1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(h, hn::Set(di, 127))));
  const V s2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(i, h), hn::Set(di, 127))));
  V y = hn::Mul(hn::Mul(e, s1), s2);
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.72283f)), hn::Set(d, HUGE_VALF), y);
  y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33655f)), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// 1 / (1 + e^-x)
template <class D, class V = hn::Vec<D>> HWY_INLINE V Sigmoid(D d, V x) {
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(x))));
}

// x / (1 + e^-x); x = -inf gives NaN as the formula does in IEEE arithmetic only for 0 * inf: here
// -inf / inf is NaN, as in PyTorch and NumPy.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(x))));
}

// tanh x as the quotient p(x) / q(x) of Eigen's float tanh, within 3e-7 relative; x itself near
// zero.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Tanh(D d, V v) {
  const V x = hn::Min(hn::Max(v, hn::Set(d, -7.90531110763549805f)), hn::Set(d, 7.90531110763549805f));
  const V s = hn::Mul(x, x);
  const V p = Polynomial(d, s, -2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                         5.12229709037114e-08f, 1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f);
  const V q =
      Polynomial(d, s, 1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f);
  const V y = hn::Div(hn::Mul(x, p), q);
  const auto as_is = hn::Or(hn::Lt(hn::Abs(v), hn::Set(d, 4e-4f)), hn::IsNaN(v));
  return hn::IfThenElse(as_is, v, y);
}

// erf x as the quotient p(x) / q(x) of Eigen's float erf, within 3.5e-7, nearly all of it rounding, and
// never beyond -1 or 1.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Erf(D d, V v) {
  const V x = hn::Min(hn::Max(v, hn::Set(d, -4.0f)), hn::Set(d, 4.0f));
  const V s = hn::Mul(x, x);
  const V p =
      Polynomial(d, s, -2.72614225801306e-10f, 2.77068142495902e-08f, -2.10102402082508e-06f, -5.69250639462346e-05f,
                 -7.34990630326855e-04f, -2.95459980854025e-03f, -1.60960333262415e-02f);
  const V q = Polynomial(d, s, -1.45660718464996e-05f, -2.13374055278905e-04f, -1.68282697438203e-03f,
                         -7.37332916720468e-03f, -1.42647390514189e-02f);
  const V y = hn::Min(hn::Max(hn::Div(hn::Mul(x, p), q), hn::Set(d, -1.0f)), hn::Set(d, 1.0f));
  return hn::IfThenElse(hn::IsNaN(v), v, y);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
