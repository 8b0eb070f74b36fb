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

// x/2 (1 + erf(x / sqrt 2)), absolute error below 3e-7 max(1, |x|). erf is the odd rational function
// x P(x^2) / Q(x^2) of Eigen, good to 2 ulp on [-4, 4], outside of which erf rounds to -1 or 1.
template <class D, class V = hn::Vec<D>> HWY_INLINE V GeluErf(D d, V x) {
  V z = hn::Mul(x, hn::Set(d, 0.70710678118654752f));
  z = hn::Min(hn::Max(z, hn::Set(d, -4.0f)), hn::Set(d, 4.0f));
  const V s = hn::Mul(z, z);
  V p = hn::Set(d, -2.72614225801306e-10f);
  p = hn::MulAdd(p, s, hn::Set(d, 2.77068142495902e-08f));
  p = hn::MulAdd(p, s, hn::Set(d, -2.10102402082508e-06f));
  p = hn::MulAdd(p, s, hn::Set(d, -5.69250639462346e-05f));
  p = hn::MulAdd(p, s, hn::Set(d, -7.34990630326855e-04f));
  p = hn::MulAdd(p, s, hn::Set(d, -2.95459980854025e-03f));
  p = hn::MulAdd(p, s, hn::Set(d, -1.60960333262415e-02f));
  V q = hn::Set(d, -1.45660718464996e-05f);
  q = hn::MulAdd(q, s, hn::Set(d, -2.13374055278905e-04f));
  q = hn::MulAdd(q, s, hn::Set(d, -1.68282697438203e-03f));
  q = hn::MulAdd(q, s, hn::Set(d, -7.37332916720468e-03f));
  q = hn::MulAdd(q, s, hn::Set(d, -1.42647390514189e-02f));
  V erf = hn::Div(hn::Mul(z, p), q);
  erf = hn::Min(hn::Max(erf, hn::Set(d, -1.0f)), hn::Set(d, 1.0f));
  const V y = hn::Mul(hn::Mul(x, hn::Set(d, 0.5f)), hn::Add(hn::Set(d, 1.0f), erf));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + e^-2u).
template <class D, class V = hn::Vec<D>> HWY_INLINE V GeluTanh(D d, V x) {
  const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), hn::Set(d, 0.044715f)), x, x);
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Mul(cubic, hn::Set(d, -1.5957691216057308f)))));
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
