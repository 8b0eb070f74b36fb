// What makes weights of a tile of scores, per SIMD target: scale, masks, and the softmax whose maximum and sum run
// from tile to tile.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention.h"

#if defined(OPGRAFT_ATTENTION_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ATTENTION_WEIGHTS_INL_H_
#undef OPGRAFT_ATTENTION_WEIGHTS_INL_H_
#else
#define OPGRAFT_ATTENTION_WEIGHTS_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/gemm-inl.h"
#include "aot_ops/common/map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// What is done to a row's scores: nothing, a mask's addition of one element to each, other masks, and all there is: a
// tanh before them, and masks of float32 where scores are of a half type.
enum Masking { kUnmasked, kAdded, kOther, kAll };

// v, `count` scores, and a mask's elements, or its one for all, times its factor.
template <class T, class D>
HWY_INLINE hn::Vec<D> Added(D d, hn::Vec<D> v, const Mask &m, const T *mask, bool each, size_t count) {
  const auto factor = hn::Set(d, m.factor);
  if (!each) return hn::MulAdd(factor, hn::Set(d, float(*mask)), v);
  return hn::MulAdd(factor, count == hn::Lanes(d) ? LoadF32(d, mask) : LoadF32N(d, mask, count), v);
}

// v, `count` scores, with the mask from its element `at` on, or with that one for all: added, or chosen by bools.
template <Masking kMask, class T, class D>
HWY_INLINE hn::Vec<D> Masked(D d, hn::Vec<D> v, const Attention &g, const Mask &m, int64_t at, size_t count) {
  const bool each = kMask == kAdded || m.at[3] != 0, whole = count == hn::Lanes(d);
  if (kMask == kAll && m.wide) return Added(d, v, m, static_cast<const float *>(m.data) + at, each, count);
  if (kMask == kAdded || !m.chosen) return Added(d, v, m, static_cast<const T *>(m.data) + at, each, count);
  const uint8_t *mask = static_cast<const uint8_t *>(m.data) + at;
  const auto fill = hn::Set(d, g.fill);
  if (!each) return (*mask != 0) == g.hides ? fill : v;
  const hn::Rebind<uint8_t, D> bytes;
  const hn::RebindToSigned<D> wide;
  uint8_t rest[hn::MaxLanes(d)] = {};
  if (!whole) mask = static_cast<const uint8_t *>(std::memcpy(rest, mask, count));
  const auto off = hn::RebindMask(d, hn::Eq(hn::PromoteTo(wide, hn::LoadU(bytes, mask)), hn::Zero(wide)));
  return g.hides ? hn::IfThenElse(off, v, fill) : hn::IfThenElse(off, fill, v);
}

// Rows that go through the keys together: maximum and sum so far, and the factor for what was summed before the last
// tile; the keys that a row sees; its masks' elements of the first key.
template <int kMost> struct RowStates {
  float m[kMost], l[kMost], before[kMost];
  int64_t seen[kMost];
  Attention::MaskRow at[kMost];

  HWY_INLINE void begin(const Attention &g, int64_t batch, int64_t head, int64_t row0, int64_t r) {
    m[r] = -HUGE_VALF, l[r] = 0.0f;
    seen[r] = g.seen(g.length(batch), row0 + r);
    at[r] = g.mask_row(batch, head, row0 + r);
  }
};

// s = the first `seen` of n scores from key t on, scaled, capped and masked, the others -inf. Returns the largest.
template <Masking kMask, class T> HWY_INLINE float MaskRow(const Attention &g, float *s, int64_t t, int64_t n,
                                                           int64_t seen, const Attention::MaskRow &row) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto low = hn::Set(d, -HUGE_VALF), cap = hn::Set(d, g.softcap);
  const bool capped = kMask == kAll && g.capped();
  const auto factor = hn::Set(d, capped ? g.scale / g.softcap : g.scale);
  auto most = low;
  const auto masked = [&](int64_t i, size_t count) HWY_ATTR {
    auto v = hn::Mul(hn::LoadU(d, s + i), factor);
    if (kMask == kAdded) v = Masked<kMask, T>(d, v, g, g.masks[0], row.at[0] + t + i, count);
    if (capped) v = hn::Mul(Tanh(d, v), cap);
    for (int k = 0; kMask >= kOther && k < g.mask_count; ++k)
      v = Masked<kMask, T>(d, v, g, g.masks[k], row.at[k] + (t + i) * g.masks[k].at[3], count);
    return v;
  };
  int64_t i = 0;
  for (; i + lanes <= seen; i += lanes) {
    const auto v = masked(i, size_t(lanes));
    hn::StoreU(v, d, s + i);
    most = hn::Max(most, v);
  }
  for (; i < n; i += lanes) {
    const size_t count = size_t(seen <= i ? 0 : seen - i);
    const auto v = count ? hn::IfThenElse(hn::FirstN(d, count), masked(i, count), low) : low;
    hn::StoreU(v, d, s + i);
    most = hn::Max(most, v);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// The sum of v's blocks of 128 bits.
template <class D> HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> SumOfBlocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return SumOfBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The sums of four vectors' lanes.
template <class D> HWY_INLINE void StoreSums(D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c, hn::Vec<D> e, float *to) {
  const hn::RepartitionToWide<D> w;
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));  // a, b, a, b in every block
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto lower = hn::BitCast(d, hn::InterleaveLower(w, hn::BitCast(w, ab), hn::BitCast(w, ce)));
  const auto upper = hn::BitCast(d, hn::InterleaveUpper(w, hn::BitCast(w, ab), hn::BitCast(w, ce)));
  hn::StoreU(SumOfBlocks(d, hn::Add(lower, upper)), hn::CappedTag<float, 4>(), to);
}

// Scores of kR rows, 4 or 1, become e^(s - base), and `sums` theirs, with the same bits whatever kR is.
template <int kR> HWY_INLINE void Weights(float *s, int64_t apart, int64_t n, const float *base, float *sums) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  hn::Vec<decltype(d)> shift[kR], sum[kR];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) shift[r] = hn::Set(d, base[r]), sum[r] = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const auto p = ExpBelow0(d, hn::Sub(hn::LoadU(d, s + r * apart + i), shift[r]));
      hn::StoreU(p, d, s + r * apart + i);
      sum[r] = hn::Add(sum[r], p);
    }
  }
  float all[4];
  StoreSums(d, sum[0], sum[kR > 1 ? 1 : 0], sum[kR > 1 ? 2 : 0], sum[kR - 1], all);
  std::copy(all, all + kR, sums);
}

#if HWY_TARGET == HWY_AVX3
// The same rounded to bfloat16, in the first half of their places, with a 0 behind an odd n. What is summed is what was
// rounded: the result is a mean of the values whose weights are off, none that is off by what the weights' sum is.
template <int kR> HWY_INLINE void WeightPairs(float *s, int64_t apart, int64_t n, const float *base, float *sums) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto ones = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<decltype(d)>(), 0x3f803f80u));
  hn::Vec<decltype(d)> shift[kR], sum[kR];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r) shift[r] = hn::Set(d, base[r]), sum[r] = hn::Zero(d);
  for (int64_t i = 0; i < n; i += 2 * lanes) {
    const bool both = i + lanes < n;  // behind a tile's last scores nothing was written
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const float *from = s + r * apart + i;
      const auto p = ExpBelow0(d, hn::Sub(hn::LoadU(d, from), shift[r]));
      const auto q = both ? ExpBelow0(d, hn::Sub(hn::LoadU(d, from + lanes), shift[r])) : hn::Zero(d);
      const auto pairs = RoundToPairs(p, q);
      hn::StoreU(pairs, d, s + r * apart + i / 2);
      sum[r] = AddProducts<Bf16Pair>(pairs, ones, sum[r]);
    }
  }
  float all[4];
  StoreSums(d, sum[0], sum[kR > 1 ? 1 : 0], sum[kR > 1 ? 2 : 0], sum[kR - 1], all);
  std::copy(all, all + kR, sums);
}
#endif

template <int kR, class T>
HWY_INLINE void WeightRows(const Attention &g, float *s, int64_t apart, int64_t n, const float *base, float *sums) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, ::opgraft::bfloat16>)
    if (g.values_by) return WeightPairs<kR>(s, apart, n, base, sums);
#endif
  Weights<kR>(s, apart, n, base, sums);
}

// The scores of n keys from key t on, of rows that lie `apart`, become weights e^(s - m), 0 where a row does not see
// the key.
template <Masking kMask, class T, int kMost> HWY_INLINE void SoftmaxRows(const Attention &g, float *scores,
                                                                         int64_t apart, int64_t rows, int64_t t,
                                                                         int64_t n, RowStates<kMost> &state) {
  float base[kMost], sums[kMost];
  const auto maximum = [&](int64_t r) HWY_ATTR {
    const int64_t seen = std::clamp<int64_t>(state.seen[r] - t, 0, n);
    const float tile = MaskRow<kMask, T>(g, scores + r * apart, t, n, seen, state.at[r]), old = state.m[r];
    const float next = tile > old ? tile : old;
    base[r] = next == -HUGE_VALF ? 0.0f : next;  // all masked so far: weights of 0, not NaN
    state.before[r] = old == base[r] ? 1.0f : old == -HUGE_VALF ? 0.0f : std::exp(old - base[r]);
    state.m[r] = next;
  };
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    for (int j = 0; j < 4; ++j) maximum(r + j);
    WeightRows<4, T>(g, scores + r * apart, apart, n, base + r, sums + r);
  }
  for (; r < rows; ++r) {
    maximum(r);
    WeightRows<1, T>(g, scores + r * apart, apart, n, base + r, sums + r);
  }
  for (r = 0; r < rows; ++r) state.l[r] = state.l[r] * state.before[r] + sums[r];
}

// Of few models: apart from what all run.
template <class T, int kMost> HWY_NOINLINE void SoftmaxOfAll(const Attention &g, float *scores, int64_t apart,
                                                             int64_t rows, int64_t t, int64_t n,
                                                             RowStates<kMost> &state) {
  SoftmaxRows<kAll, T>(g, scores, apart, rows, t, n, state);
}

template <class T, int kMost> HWY_INLINE void SoftmaxTile(const Attention &g, float *scores, int64_t apart,
                                                          int64_t rows, int64_t t, int64_t n, RowStates<kMost> &state) {
  if (g.capped() || g.wide_masks) SoftmaxOfAll<T>(g, scores, apart, rows, t, n, state);
  else if (g.mask_count == 0) SoftmaxRows<kUnmasked, T>(g, scores, apart, rows, t, n, state);
  else if (g.mask_count == 1 && !g.masks[0].chosen && g.masks[0].at[3] == 1)
    SoftmaxRows<kAdded, T>(g, scores, apart, rows, t, n, state);
  else SoftmaxRows<kOther, T>(g, scores, apart, rows, t, n, state);
}

// One row of the result from its sums; one that does not count is 0.
template <class T> HWY_INLINE void Finish(const float *sums, float l, bool counts, T *out, int64_t dim) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, 1.0f / l);
  Map([&](auto, auto x) HWY_ATTR { return counts ? hn::Mul(x, scale) : hn::Zero(d); }, out, dim, sums);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
