// Attention of single queries over keys and values as they lie, per SIMD target.
#include <cmath>

#include "attention.h"

#if defined(OPGRAFT_ATTENTION_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ATTENTION_DIRECT_INL_H_
#undef OPGRAFT_ATTENTION_DIRECT_INL_H_
#else
#define OPGRAFT_ATTENTION_DIRECT_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Scores of one row become weights e^(s - m); `m` and `l` are the row's running maximum and sum.
// Returns the factor for what was summed before.
template <class T>
HWY_INLINE float SoftmaxRow(float *s, int64_t n, float scale, const T *mask, int64_t mask_step, float *m, float *l) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto low = hn::Set(d, -HUGE_VALF), factor = hn::Set(d, scale);
  auto most = low;
  for (int64_t i = 0; i < n; i += lanes) {
    const size_t count = size_t(n - i < lanes ? n - i : lanes);
    const bool whole = count == size_t(lanes);
    auto v = hn::Mul(hn::LoadU(d, s + i), factor);
    if (mask) {
      if (mask_step == 0) v = hn::Add(v, hn::Set(d, float(*mask)));
      else v = hn::Add(v, whole ? LoadF32(d, mask + i) : LoadF32N(d, mask + i, count));
    }
    if (!whole) v = hn::IfThenElse(hn::FirstN(d, count), v, low);
    hn::StoreU(v, d, s + i);
    most = hn::Max(most, v);
  }
  const float tile = hn::GetLane(hn::MaxOfLanes(d, most)), next = tile > *m ? tile : *m;
  const float base = next == -HUGE_VALF ? 0.0f : next;  // all masked so far: weights of 0, not NaN
  const auto shift = hn::Set(d, base);
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto p = Exp(d, hn::Sub(hn::LoadU(d, s + i), shift));
    hn::StoreU(p, d, s + i);
    sum = hn::Add(sum, p);
  }
  const float before = *m == -HUGE_VALF ? 0.0f : std::exp(*m - base);
  *l = *l * before + hn::GetLane(hn::SumOfLanes(d, sum));
  *m = next;
  return before;
}

// The vector at column i of a row of `dim` elements; what lies beyond its end counts as zero.
template <class D, class T> HWY_INLINE hn::Vec<D> LoadColumn(D d, const T *row, int64_t i, int64_t dim) {
  return dim - i >= int64_t(hn::Lanes(d)) ? LoadF32(d, row + i) : LoadF32N(d, row + i, size_t(dim - i));
}

// Scores of n keys, `step` apart, for one query, which is padded with zeros to whole vectors.
template <class T>
HWY_INLINE void ScoreRow(const float *q, const T *k, int64_t step, int64_t n, int64_t dim, float *s) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t t = 0;
  for (; t + 4 <= n; t += 4) {  // four chains hide the latency of FMA
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    const T *row = k + t * step;
    for (int64_t i = 0; i < dim; i += lanes) {
      const auto x = hn::LoadU(d, q + i);
      s0 = hn::MulAdd(x, LoadColumn(d, row, i, dim), s0);
      s1 = hn::MulAdd(x, LoadColumn(d, row + step, i, dim), s1);
      s2 = hn::MulAdd(x, LoadColumn(d, row + 2 * step, i, dim), s2);
      s3 = hn::MulAdd(x, LoadColumn(d, row + 3 * step, i, dim), s3);
    }
    s[t] = hn::GetLane(hn::SumOfLanes(d, s0));
    s[t + 1] = hn::GetLane(hn::SumOfLanes(d, s1));
    s[t + 2] = hn::GetLane(hn::SumOfLanes(d, s2));
    s[t + 3] = hn::GetLane(hn::SumOfLanes(d, s3));
  }
  for (; t < n; ++t) {
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < dim; i += lanes)
      sum = hn::MulAdd(hn::LoadU(d, q + i), LoadColumn(d, k + t * step, i, dim), sum);
    s[t] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// sums = sums * before + the n rows of v, `step` apart, weighted by s; kVectors vectors from column i on.
template <int kVectors, class T> HWY_INLINE void WeighRows(const float *s, const T *v, int64_t step, int64_t n,
                                                           int64_t i, int64_t dim, float before, float *sums) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  hn::Vec<decltype(d)> even[kVectors], odd[kVectors];
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) {
    even[c] = hn::Mul(hn::LoadU(d, sums + i + c * lanes), hn::Set(d, before));
    odd[c] = hn::Zero(d);
  }
  int64_t t = 0;
  for (; t + 2 <= n; t += 2) {
    const T *row = v + t * step;
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      even[c] = hn::MulAdd(hn::Set(d, s[t]), LoadColumn(d, row, i + c * lanes, dim), even[c]);
      odd[c] = hn::MulAdd(hn::Set(d, s[t + 1]), LoadColumn(d, row + step, i + c * lanes, dim), odd[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) {
    if (t < n) even[c] = hn::MulAdd(hn::Set(d, s[t]), LoadColumn(d, v + t * step, i + c * lanes, dim), even[c]);
    hn::StoreU(hn::Add(even[c], odd[c]), d, sums + i + c * lanes);
  }
}

// Units [begin, end) of (batch, head, query), keys and values as they lie.
template <class T> void AttendDirect(const Attention &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  HWY_ALIGN float q[kMostDim], scores[kKeys], sums[kMostDim];
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t s = unit % g.queries, head = unit / g.queries % g.heads, batch = unit / g.queries / g.heads;
    const int64_t at = batch * g.q_at.batch + head * g.q_at.head + s * g.q_at.row;
    const int64_t from = batch * g.k_at.batch + head * g.k_at.head, step = g.k_at.row;
    const T *keys = static_cast<const T *>(g.k) + from, *values = static_cast<const T *>(g.v) + from;
    for (int64_t i = 0; i < g.dim; i += lanes) {
      hn::StoreU(LoadColumn(d, static_cast<const T *>(g.q) + at, i, g.dim), d, q + i);
      hn::StoreU(hn::Zero(d), d, sums + i);
    }
    float m = -HUGE_VALF, l = 0.0f;
    for (int64_t t = 0; t < g.keys; t += kKeys) {
      const int64_t n = g.keys - t < kKeys ? g.keys - t : kKeys;
      const T *mask = g.mask ? static_cast<const T *>(g.mask) + batch * g.mask_at[0] + head * g.mask_at[1] +
                                   s * g.mask_at[2] + t * g.mask_at[3]
                             : nullptr;
      ScoreRow(q, keys + t * step, step, n, g.dim, scores);
      const float before = SoftmaxRow(scores, n, g.scale, mask, g.mask_at[3], &m, &l);
      const T *v = values + t * step;
      int64_t i = 0;
      for (; i + 3 * lanes < g.dim; i += 4 * lanes) WeighRows<4>(scores, v, step, n, i, g.dim, before, sums);
      for (; i + lanes < g.dim; i += 2 * lanes) WeighRows<2>(scores, v, step, n, i, g.dim, before, sums);
      if (i < g.dim) WeighRows<1>(scores, v, step, n, i, g.dim, before, sums);
    }
    const auto scale = hn::Set(d, g.keys ? 1.0f / l : 0.0f);
    Map([&](auto, auto x) HWY_ATTR { return hn::Mul(x, scale); }, static_cast<T *>(g.out) + at, g.dim, sums);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
