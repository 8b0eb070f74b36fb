// The exponential of scores below their maximum, per SIMD target.
#if defined(OPGRAFT_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_EXP_INL_H_
#undef OPGRAFT_EXP_INL_H_
#else
#define OPGRAFT_EXP_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// e^x for x <= 0, within (1.5 + |x| / 4) 2^-24; below -87.7 it is 0. NaN stays NaN. x / ln 2 = n + f, |f| <= 1/2, by
// one product that is not rounded before n is taken away; log2 e itself is off by 0.22 of a rounding. Adding 1.5 * 2^23
// + 127 rounds x / ln 2 and leaves n + 127, the exponent of 2^n, in the low bits; n = -127 makes 2^n zero. 2^f by a
// least-maximum fit of degree 6, 2^-25.9 in float32.
template <class D, class V = hn::Vec<D>> HWY_INLINE V ExpBelow0(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V log2e = hn::Set(d, 1.44269504088896341f), round = hn::Set(d, 12582912.0f + 127.0f);
  x = hn::Max(hn::Set(d, -88.0f), x);  // in this order: x86's max gives the second where one is NaN
  const V t = hn::MulAdd(x, log2e, round);
  const V f = hn::MulSub(x, log2e, hn::Sub(t, round));
  V p = hn::Set(d, 1.535336196e-04f);
  for (float c : {1.339887502e-03f, 9.618436918e-03f, 5.550332367e-02f, 2.402264774e-01f, 6.931471825e-01f, 1.0f})
    p = hn::MulAdd(p, f, hn::Set(d, c));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, t))));
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
