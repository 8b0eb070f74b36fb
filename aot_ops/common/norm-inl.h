// Normalisation of one row over float32, per SIMD target.
#if defined(OPGRAFT_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_NORM_INL_H_
#undef OPGRAFT_NORM_INL_H_
#else
#define OPGRAFT_NORM_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "aot_ops/common/lines-inl.h"
#include "aot_ops/common/stream-inl.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The first `n` lanes of v, the others zero.
template <class D, class V = hn::Vec<D>> HWY_INLINE V FirstLanes(D d, V v, size_t n) {
  return hn::IfThenElseZero(hn::FirstN(d, n), v);
}

// A whole vector, or its first n elements.
template <class D, class T> HWY_INLINE hn::Vec<D> LoadSome(D d, const T *p) { return LoadF32(d, p); }
template <class D, class T> HWY_INLINE hn::Vec<D> LoadSome(D d, const T *p, size_t n) { return LoadF32N(d, p, n); }
template <class D, class T> HWY_INLINE void StoreSome(hn::Vec<D> v, D d, T *p) { StoreF32(v, d, p); }
template <class D, class T> HWY_INLINE void StoreSome(hn::Vec<D> v, D d, T *p, size_t n) { StoreF32N(v, d, p, n); }

// Whether float32 held the squares that have this mean: they did not overflow, and were not too small for it.
HWY_INLINE bool Held(double mean, double epsilon) { return mean <= 3e38 && mean + epsilon >= 1e-30; }

// Whether float32 has the number with all its bits.
HWY_INLINE bool Normal(float v) {
  return v >= std::numeric_limits<float>::min() && v <= std::numeric_limits<float>::max();
}

// Mean and variance of n > 0 elements in two sweeps over a row that the first brings into L1. The
// second sums d = x - mean and d^2 and corrects both for the rounding of the first mean (Chan, Golub and
// LeVeque 1983), so that a mean that is large against the deviation costs no accuracy. The mean is
// base + shift: its rounded sum alone would be too coarse to subtract.
struct Moments {
  float base, shift, variance;
};
template <class T> HWY_INLINE Moments MeanVariance(const T *x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const size_t rest = size_t(n % lanes);
  const int64_t whole = n - int64_t(rest);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= whole; i += 4 * lanes) {
    s0 = hn::Add(s0, LoadF32(d, x + i));
    s1 = hn::Add(s1, LoadF32(d, x + i + lanes));
    s2 = hn::Add(s2, LoadF32(d, x + i + 2 * lanes));
    s3 = hn::Add(s3, LoadF32(d, x + i + 3 * lanes));
  }
  for (; i < whole; i += lanes) s0 = hn::Add(s0, LoadF32(d, x + i));
  if (rest) s1 = hn::Add(s1, LoadF32N(d, x + i, rest));
  const float first = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))) / float(n);
  const auto m = hn::Set(d, first);
  auto d0 = hn::Zero(d), d1 = d0, q0 = d0, q1 = d0;
  for (i = 0; i + 2 * lanes <= whole; i += 2 * lanes) {
    const auto a = hn::Sub(LoadF32(d, x + i), m), b = hn::Sub(LoadF32(d, x + i + lanes), m);
    d0 = hn::Add(d0, a);
    d1 = hn::Add(d1, b);
    q0 = hn::MulAdd(a, a, q0);
    q1 = hn::MulAdd(b, b, q1);
  }
  for (; i < n; i += lanes) {
    auto a = i < whole ? hn::Sub(LoadF32(d, x + i), m) : FirstLanes(d, hn::Sub(LoadF32N(d, x + i, rest), m), rest);
    d0 = hn::Add(d0, a);
    q0 = hn::MulAdd(a, a, q0);
  }
  const float shift = hn::GetLane(hn::SumOfLanes(d, hn::Add(d0, d1))) / float(n);
  const float square = hn::GetLane(hn::SumOfLanes(d, hn::Add(q0, q1))) / float(n);
  const float v = square - shift * shift;
  return {first, shift, v < 0.0f ? 0.0f : v};  // keeps NaN
}

// y = (x - base - shift) scale * gamma + beta; gamma and beta may be null, beta alone not. past: MapRowPast.
template <class T, class G> HWY_INLINE void ScaleShift(const T *x, const Moments &at, float scale, const G *gamma,
                                                       const G *beta, T *y, int64_t n, bool past) {
  const hn::ScalableTag<float> d;
  const auto m = hn::Set(d, at.base), s = hn::Set(d, scale), shift = hn::Set(d, -at.shift * scale);
  auto unit = [&](auto v) HWY_ATTR { return hn::MulAdd(hn::Sub(v, m), s, shift); };
  const auto all = [&](auto, auto v, auto g, auto b) HWY_ATTR { return hn::MulAdd(unit(v), g, b); };
  if (beta) MapRowPast(past, all, y, n, x, gamma, beta);
  else if (gamma)
    MapRowPast(
        past, [&](auto, auto v, auto g) HWY_ATTR { return hn::Mul(unit(v), g); }, y, n, x, gamma);
  else
    MapRowPast(
        past, [&](auto, auto v) HWY_ATTR { return unit(v); }, y, n, x);
}

// Sum of x^2 over n > 0 elements.
template <class T> HWY_INLINE float SumOfSquares(const T *x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  auto add = [&](auto &s, auto v) HWY_ATTR { s = hn::MulAdd(v, v, s); };
  auto fours = [&](int64_t end, auto &&at) HWY_ATTR {
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      add(s0, at(i));
      add(s1, at(i + lanes));
      add(s2, at(i + 2 * lanes));
      add(s3, at(i + 3 * lanes));
    }
  };
  if (HWY_UNLIKELY(Lines<T>::worth(x, n))) {
    Lines<T> in(x);
    fours(Lines<T>::whole(n) * lanes, [&](int64_t k) HWY_ATTR { return in.at(k); });
  }
  fours(n, [&](int64_t k) HWY_ATTR { return LoadF32(d, x + k); });
  for (; i + lanes <= n; i += lanes) add(s0, LoadF32(d, x + i));
  if (i < n) add(s1, LoadF32N(d, x + i, size_t(n - i)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// 1 / sqrt(mean of x^2 + epsilon) of n > 0 elements. Squares that float32 does not hold are added in double.
template <class T> HWY_INLINE float InverseRms(const T *x, int64_t n, double epsilon) {
  double mean = double(SumOfSquares(x, n)) / double(n);
  if (!Held(mean, epsilon)) {
    mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += double(float(x[i])) * double(float(x[i]));
    mean /= double(n);
  }
  return float(1.0 / std::sqrt(mean + epsilon));
}

// y = x scale * gamma; gamma may be null. past: MapRowPast.
template <class T, class G>
HWY_INLINE void ScaleRow(const T *x, float scale, const G *gamma, T *y, int64_t n, bool past) {
  const auto s = hn::Set(hn::ScalableTag<float>(), scale);
  const auto both = [&](auto, auto v, auto g) HWY_ATTR { return hn::Mul(hn::Mul(v, s), g); };
  const auto one = [&](auto, auto v) HWY_ATTR { return hn::Mul(v, s); };
  if (past) gamma ? MapRowPast(true, both, y, n, x, gamma) : MapRowPast(true, one, y, n, x);
  else gamma ? MapLines(both, y, n, x, gamma) : MapLines(one, y, n, x);
}

// Rows from r on, `count` of them, as they are normalised: x's, or the sums with the residual, which it stores, rounded
// to T. Several short ones at once: what was stored in part of a vector is not read back before it has left the core's
// store buffer.
template <class T, class Rows> HWY_INLINE const T *NormalisedRows(const Rows &g, int64_t r, int64_t count) {
  const T *x = static_cast<const T *>(g.x) + r * g.n;
  if (!g.residual) return x;
  T *sum = static_cast<T *>(g.sum) + r * g.n;
  Map([](auto, auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, sum, count * g.n, x,
      static_cast<const T *>(g.residual) + r * g.n);
  return sum;
}

// How many rows of n elements make a block that stays in L1.
inline constexpr int64_t kMostRows = 256;
inline int64_t rows_together(int64_t n) { return std::clamp<int64_t>(2048 / std::max<int64_t>(n, 1), 1, kMostRows); }

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
