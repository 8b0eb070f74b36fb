// Vector GELU in float32, exact (erf) and by tanh, per SIMD target.
#if defined(OPGRAFT_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_GELU_INL_H_
#undef OPGRAFT_GELU_INL_H_
#else
#define OPGRAFT_GELU_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// x/2 (1 + erf(x / sqrt 2)), absolute error below 3e-7 max(1, |x|).
template <class D, class V = hn::Vec<D>> HWY_INLINE V GeluErf(D d, V x) {
  const V erf = Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f)));
  return hn::Mul(hn::Mul(x, hn::Set(d, 0.5f)), hn::Add(hn::Set(d, 1.0f), erf));
}

// x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + e^-2u).
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE V GeluTanh(D d, V x) {
  const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.0713548162726f), hn::Set(d, 1.5957691216057308f));
  return hn::Mul(x, Sigmoid<T>(d, hn::Mul(x, cubic)));
}

// The derivatives, 0 and 1 at -inf and inf. By erf: Phi(x) + x phi(x).
template <class D, class V = hn::Vec<D>> HWY_INLINE V GeluErfSlope(D d, V v) {
  const V x = Clamp(d, v, -14.0f, 14.0f), half = hn::Set(d, 0.5f);
  const V phi = hn::Mul(hn::Set(d, 0.39894228040143268f), Exp(d, hn::Mul(hn::Mul(x, hn::Set(d, -0.5f)), x)));
  const V erf = Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f)));
  return hn::MulAdd(x, phi, hn::MulAdd(erf, half, half));
}
// By tanh: s (1 + 2u' x (1 - s)), s the logistic function of 2u, which is 127 ln2 at x = 10.031 and 124 ln2 at 9.940.
template <class T = float, class D, class V = hn::Vec<D>> HWY_INLINE V GeluTanhSlope(D d, V v) {
  const V x = Clamp(d, v, -10.031f, 9.940f), square = hn::Mul(x, x), one = hn::Set(d, 1.0f);
  const V k = hn::Set(d, 1.5957691216057308f), cubic = hn::Set(d, 0.0713548162726f);
  const auto p = Logistic<T>(d, hn::Mul(x, hn::MulAdd(square, cubic, k)));
  const V steep = hn::Mul(x, hn::MulAdd(square, hn::Set(d, 3 * 0.0713548162726f), k));
  const V inverse = hn::Div(one, hn::Add(p.s, p.q));
  return hn::Mul(hn::Mul(p.s, inverse), hn::MulAdd(steep, hn::Mul(p.q, inverse), one));
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
