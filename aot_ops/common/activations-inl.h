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

// e^x, at most 2 ulp on [-87.3, 88.7]; smaller x give 0, larger inf; NaN stays NaN.
// x = n ln2 + r, |r| <= ln2 / 2; e^r by the degree-6 polynomial of Cephes expf.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V clamped = hn::Min(hn::Max(x, hn::Set(d, -87.5f)), hn::Set(d, 88.8f));
  const V n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504088896341f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(p, r), r, r), hn::Set(d, 1.0f));
  // 2^n in two halves: n reaches 128 and -126 - 1, which one exponent field cannot hold.
  const auto i = hn::ConvertTo(di, n);
  const auto h = hn::ShiftRight<1>(i);
  const V s1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(h, hn::Set(di, 127))));
  const V s2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(i, h), hn::Set(di, 127))));
  V y = hn::Mul(hn::Mul(p, s1), s2);
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

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
