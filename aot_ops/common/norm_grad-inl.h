// The gradients of LayerNorm and RMSNorm over rows, per SIMD target.
#include <algorithm>

#include "aot_ops/common/norm_grad.h"

#if defined(OPGRAFT_NORM_GRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_NORM_GRAD_INL_H_
#undef OPGRAFT_NORM_GRAD_INL_H_
#else
#define OPGRAFT_NORM_GRAD_INL_H_
#endif

#include "aot_ops/common/norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// With the row as it was normalised, h = (x - mean) rstd, and g = dy gamma (Ba, Kiros and Hinton 2016, derived):
// dx = rstd (g - mean of g - h mean of g h), dgamma = sum over rows of dy h, dbeta = that of dy. kCenter: LayerNorm;
// RMSNorm has no mean, and no mean of g. False, and nothing is written, where float32 does not hold what comes of the
// row, or where other rows might make sums of it that float32 does not hold, though it does their result.
template <bool kCenter, class T, class G>
bool NormGradRow(const NormGradRows &a, int64_t r, float *dgamma, float *dbeta) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), n = a.n, m = a.params;
  const T *x = static_cast<const T *>(a.x) + r * n, *dy = static_cast<const T *>(a.dy) + r * n;
  const T *more = a.more ? static_cast<const T *>(a.more) + r * n : nullptr;
  const G *gamma = static_cast<const G *>(a.gamma);
  T *dx = static_cast<T *>(a.dx) + r * n;

  Moments at{0, 0, 0};
  float rstd = 0;
  if constexpr (kCenter) {
    at = a.mean ? Moments{a.mean[r], 0, a.variance ? a.variance[r] : 0} : MeanVariance(x, n);
    if (HWY_UNLIKELY(!a.rstd && !Held(at.variance, a.epsilon))) return false;
    rstd = a.rstd ? a.rstd[r] : float(1.0 / std::sqrt(double(at.variance) + a.epsilon));
  } else {
    rstd = a.rstd ? a.rstd[r] : InverseRms(x, n, a.epsilon);
    if (HWY_UNLIKELY(!Normal(rstd))) return false;
  }
  const auto scale = hn::Set(d, rstd), base = hn::Set(d, at.base), shift = hn::Set(d, -at.shift * rstd);
  auto unit = [&](auto v) HWY_ATTR {
    if constexpr (kCenter) return hn::MulAdd(hn::Sub(v, base), scale, shift);
    else return hn::Mul(v, scale);
  };
  auto c0 = hn::Zero(d), s0 = c0, q0 = c0, c1 = c0, s1 = c0, q1 = c0;
  auto add = [&](auto v, auto grad, auto g, auto &c, auto &s, auto &q) HWY_ATTR {
    if constexpr (kCenter) c = hn::Add(c, g);
    s = hn::MulAdd(unit(v), g, s);
    q = hn::MulAdd(grad, grad, q);
  };
  for (int64_t from = 0; from < n; from += m) {
    const T *px = x + from, *pd = dy + from;
    auto whole = [&](int64_t i, auto &c, auto &s, auto &q) HWY_ATTR {
      const auto grad = LoadF32(d, pd + i);
      add(LoadF32(d, px + i), grad, gamma ? hn::Mul(grad, LoadF32(d, gamma + i)) : grad, c, s, q);
    };
    int64_t i = 0;
    for (; i + 2 * lanes <= m; i += 2 * lanes) whole(i, c0, s0, q0), whole(i + lanes, c1, s1, q1);
    for (; i + lanes <= m; i += lanes) whole(i, c0, s0, q0);
    if (const size_t rest = size_t(m - i)) {
      const auto grad = LoadF32N(d, pd + i, rest);
      const auto g = gamma ? hn::Mul(grad, LoadF32N(d, gamma + i, rest)) : grad;
      add(FirstLanes(d, LoadF32N(d, px + i, rest), rest), grad, g, c1, s1, q1);
    }
  }
  // Each dy is then at most 1e18, h at most the root of n, and as many rows as there may be add up to a dgamma and a
  // dbeta that float32 holds. s does not show it: gamma may be 0 there, and what is large may cancel.
  if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Le(hn::Add(q0, q1), hn::Set(d, 1e36f))))) return false;
  const float inverse = 1.0f / float(n);
  const auto c = hn::Mul(hn::SumOfLanes(d, hn::Add(c0, c1)), hn::Set(d, inverse));
  const auto s = hn::Mul(hn::SumOfLanes(d, hn::Add(s0, s1)), hn::Set(d, inverse));
  // Products that overflow are in both means; below 1e30 they leave room for h.
  if (HWY_UNLIKELY(!(std::abs(hn::GetLane(c)) <= 1e30f && std::abs(hn::GetLane(s)) <= 1e30f))) return false;
  for (int64_t from = 0; from < n; from += m) {
    auto one = [&](int64_t i, auto... k) HWY_ATTR {
      const auto grad = LoadSome(d, dy + from + i, k...), h = unit(LoadSome(d, x + from + i, k...));
      auto v = gamma ? hn::Mul(grad, LoadSome(d, gamma + i, k...)) : grad;
      if constexpr (kCenter) v = hn::Sub(v, c);
      v = hn::Mul(hn::NegMulAdd(h, s, v), scale);
      if (more) v = hn::Add(v, LoadSome(d, more + from + i, k...));
      StoreSome(v, d, dx + from + i, k...);
      StoreSome(hn::MulAdd(grad, h, LoadSome(d, dgamma + i, k...)), d, dgamma + i, k...);
      if constexpr (kCenter) StoreSome(hn::Add(grad, LoadSome(d, dbeta + i, k...)), d, dbeta + i, k...);
    };
    int64_t i = 0;
    for (; i + lanes <= m; i += lanes) one(i);
    if (const size_t rest = size_t(m - i)) one(i, rest);
  }
  return true;
}

// Blocks [begin, end) of rows, each with partial sums of its own.
template <bool kCenter, class T> void NormGradBlocks(const NormGradRows &a, int64_t begin, int64_t end) {
  const auto row = a.wide ? NormGradRow<kCenter, T, float> : NormGradRow<kCenter, T, T>;
  for (int64_t k = begin; k < end; ++k) {
    float *dgamma = a.dgamma + k * a.params, *dbeta = kCenter ? a.dbeta + k * a.params : nullptr;
    std::fill_n(dgamma, a.params, 0.0f);
    if (kCenter) std::fill_n(dbeta, a.params, 0.0f);
    const int64_t last = std::min(a.rows, (k + 1) * a.block);
    for (int64_t r = k * a.block; r < last; ++r)
      if (!row(a, r, dgamma, dbeta)) norm_grad_row_apart<T>(a, r, k, kCenter);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
