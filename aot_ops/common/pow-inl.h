// Vector power function in float32, per SIMD target.
#if defined(OPGRAFT_POW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_POW_INL_H_
#undef OPGRAFT_POW_INL_H_
#else
#define OPGRAFT_POW_INL_H_
#endif

#include <cfloat>
#include <cmath>

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// m^y 2^(e y) for half a vector in double precision, which leaves the rounding to float32 as the only
// error that counts: y log2 x reaches 149, so that log2 must be good to 2^-32.
// log2 m = 2 / ln 2 (s + s^3 / 3 + ... + s^11 / 11) with s = (m - 1) / (m + 1); m lies in
// [sqrt 1/2, sqrt 2), |s| <= 0.172, and the first term left out is below 2e-11. 2^f by its Taylor
// series, |f| <= 1/2, to the 8th power: 2e-10.
// `r` is 1 / (m + 1) to 2^-20; one step of Newton's doubles its digits and is cheaper than a division.
template <class DF, class VF = hn::Vec<DF>> HWY_INLINE VF PowHalf(DF df, VF m, VF r, VF e, VF y) {
  const hn::Rebind<double, DF> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto one = hn::Set(d, 1.0), md = hn::PromoteTo(d, m);
  const auto rd = hn::PromoteTo(d, r), off = hn::NegMulAdd(hn::Add(md, one), rd, one);
  const auto s = hn::Mul(hn::Sub(md, one), hn::MulAdd(rd, off, rd)), s2 = hn::Mul(s, s);
  auto p = hn::Set(d, 2.885390081777927 / 11);
  p = hn::MulAdd(p, s2, hn::Set(d, 2.885390081777927 / 9));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.885390081777927 / 7));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.885390081777927 / 5));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.885390081777927 / 3));
  p = hn::MulAdd(p, s2, hn::Set(d, 2.885390081777927));
  auto t = hn::Mul(hn::MulAdd(p, s, hn::PromoteTo(d, e)), hn::PromoteTo(d, y));
  t = hn::Min(hn::Max(t, hn::Set(d, -300.0)), hn::Set(d, 300.0));  // float32 ends at 2^128 and 2^-149
  const auto n = hn::Round(t), g = hn::Mul(hn::Sub(t, n), hn::Set(d, 0.6931471805599453));
  auto q = hn::Set(d, 1.0 / 40320);
  for (double c : {1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
    q = hn::MulAdd(q, g, hn::Set(d, c));
  // n as the low bits of n + 1.5 * 2^52, then as an exponent.
  const auto bits = hn::BitCast(du, hn::Add(n, hn::Set(d, 6755399441055744.0)));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<52>(hn::Add(bits, hn::Set(du, uint64_t(1023)))));
  return hn::DemoteTo(df, hn::Mul(q, scale));
}

// x^y as std::pow defines it, within 1 ulp. Lanes where x is not a positive, normal number, or y is not
// finite, are std::pow's; what a lane becomes does not depend on its neighbours.
template <class D, class V = hn::Vec<D>> HWY_INLINE V Pow(D d, V x, V y) {
  const hn::RebindToSigned<D> di;
  const hn::Half<D> dh;
  const auto most = hn::Set(d, FLT_MAX);
  const auto plain = hn::And(hn::And(hn::Ge(x, hn::Set(d, FLT_MIN)), hn::Le(x, most)), hn::Le(hn::Abs(y), most));
  const auto bits = hn::BitCast(di, x);
  const auto e = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));  // from sqrt 1/2 on
  const auto m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(e)));
  const auto ef = hn::ConvertTo(d, e), m1 = hn::Add(m, hn::Set(d, 1.0f));
  auto r = hn::ApproximateReciprocal(m1);  // 11 bits at least
  r = hn::Mul(r, hn::NegMulAdd(m1, r, hn::Set(d, 2.0f)));
  const auto low = PowHalf(dh, hn::LowerHalf(dh, m), hn::LowerHalf(dh, r), hn::LowerHalf(dh, ef), hn::LowerHalf(dh, y));
  const auto high =
      PowHalf(dh, hn::UpperHalf(dh, m), hn::UpperHalf(dh, r), hn::UpperHalf(dh, ef), hn::UpperHalf(dh, y));
  const V power = hn::Combine(d, high, low);
  if (hn::AllTrue(d, plain)) return power;
  constexpr size_t kLanes = hn::MaxLanes(d);
  HWY_ALIGN float base[kLanes], exponent[kLanes], result[kLanes];
  uint8_t is_plain[8] = {};  // a bit for each lane
  hn::Store(x, d, base);
  hn::Store(y, d, exponent);
  hn::Store(power, d, result);
  hn::StoreMaskBits(d, plain, is_plain);
  for (size_t i = 0; i < hn::Lanes(d); ++i)
    if (!(is_plain[i / 8] >> i % 8 & 1)) result[i] = std::pow(base[i], exponent[i]);
  return hn::Load(d, result);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
