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

#if HWY_TARGET == HWY_AVX3
// Phi(a) - 1/2 = erf(a / sqrt 2) / 2 for a >= 0 by 16 polynomials of r = a - n * kPhiStep, the highest power first:
// minimax of degree 4 over |r| <= kPhiStep / 2, the first over r >= 0, within 9e-8. The last makes 0.5 at kPhiMost.
constexpr float kPhiStep = 0.36451614f, kPhiMost = 5.64f;
alignas(64) constexpr float kPhi[5][16] = {
    {0.00450215954f, 0.0161062889f, 0.0227647685f, 0.0179493148f, 0.00734536909f, -0.00177236635f, -0.00586686842f,
     -0.00571828382f, -0.00380123476f, -0.00195923401f, -0.000820735062f, -0.000285992282f, -8.40158536e-05f,
     -2.0986452e-05f, -4.48360879e-06f, -8.22722313e-07f},
    {-0.0672048107f, -0.0536640212f, -0.0238724928f, 0.00695437752f, 0.0256115943f, 0.0291722864f, 0.0229753498f,
     0.0141645465f, 0.00715089543f, 0.00302155106f, 0.00108196435f, 0.000330906711f, 8.6895423e-05f, 1.96657529e-05f,
     3.84630812e-06f, 6.51490552e-07f},
    {4.63510587e-05f, -0.0680345222f, -0.111482441f, -0.119960465f, -0.100464821f, -0.069064483f, -0.0399078466f,
     -0.0196298249f, -0.00828143954f, -0.00301119103f, -0.000946791377f, -0.000258035492f, -6.10617717e-05f,
     -1.25630804e-05f, -2.2495849e-06f, -3.50862734e-07f},
    {0.398941219f, 0.373297006f, 0.305843174f, 0.219400868f, 0.13780719f, 0.075787507f, 0.0364932977f, 0.015385638f,
     0.00567938434f, 0.0018355503f, 0.000519404828f, 0.000128681175f, 2.79117758e-05f, 5.3004992e-06f, 8.81242784e-07f,
     2.00000002e-07f},
    {3.83007537e-09f, 0.142263681f, 0.26700905f, 0.362923443f, 0.427588612f, 0.465816528f, 0.485632271f, 0.494638711f,
     0.498227984f, 0.499482155f, 0.499866396f, 0.499969602f, 0.49999392f, 0.499998927f, 0.499999821f, 0.49999997f}};
template <class D, class V = hn::Vec<D>> HWY_INLINE V PhiBeyondHalf(D d, V a) {
  const V most = hn::Min(hn::Set(d, kPhiMost), a), magic = hn::Set(d, 12582912.0f);  // in this order: NaN stays NaN
  const V biased = hn::MulAdd(most, hn::Set(d, 1.0f / kPhiStep), magic);             // n in its low bits
  const V r = hn::NegMulAdd(hn::Sub(biased, magic), hn::Set(d, kPhiStep), most);
  V p = ByFraction(d, hn::Load(d, kPhi[0]), biased);
#pragma GCC unroll 4
  for (int i = 1; i < 5; ++i) p = hn::MulAdd(p, r, ByFraction(d, hn::Load(d, kPhi[i]), biased));
  return p;
}
#endif

// x/2 (1 + erf(x / sqrt 2)), absolute error below 3e-7 max(1, |x|), with AVX-512 below 1.5e-7.
template <class D, class V = hn::Vec<D>> HWY_INLINE V GeluErf(D d, V x) {
  const V half = hn::Mul(x, hn::Set(d, 0.5f));
#if HWY_TARGET == HWY_AVX3
  const V a = hn::Abs(x);
  return hn::MulAdd(a, PhiBeyondHalf(d, a), half);
#else
  return hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f))), half);
#endif
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
#if HWY_TARGET == HWY_AVX3
  return hn::MulAdd(x, phi, hn::Add(half, hn::CopySign(PhiBeyondHalf(d, hn::Abs(x)), x)));
#else
  const V erf = Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f)));
  return hn::MulAdd(x, phi, hn::MulAdd(erf, half, half));
#endif
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
