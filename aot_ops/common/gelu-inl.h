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
template <class D, class V = hn::Vec<D>> HWY_INLINE V GeluTanh(D d, V x) {
  const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), hn::Set(d, 0.044715f)), x, x);
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Mul(cubic, hn::Set(d, -1.5957691216057308f)))));
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
