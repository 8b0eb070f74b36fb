// A run of numbers as eight-bit codes of one scale, per SIMD target.
#if defined(OPGRAFT_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_QUANTISE_INL_H_
#undef OPGRAFT_QUANTISE_INL_H_
#else
#define OPGRAFT_QUANTISE_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

struct QuantisedRun {
  float scale;  // an element is about code times scale; NaN where one is NaN or infinite, all codes being 0
  int32_t sum;  // of the codes
};

// x[n], times smooth[n] where that is not null, a vector at a time; past the end zeros.
template <class T> struct RowTimes {
  const T *x, *smooth;
  int64_t n;
  template <class D> HWY_INLINE hn::Vec<D> load(D d, int64_t i) const {
    const int64_t lanes = int64_t(hn::Lanes(d));
    const size_t left = size_t(n - i < lanes ? n - i : lanes);
    const auto v = left == size_t(lanes) ? LoadF32(d, x + i) : LoadF32N(d, x + i, left);
    if (smooth == nullptr) return v;
    return hn::Mul(v, left == size_t(lanes) ? LoadF32(d, smooth + i) : LoadF32N(d, smooth + i, left));
  }
};

// Of x[n] times smooth[n] the largest size becomes 127, rounded to nearest even. Zeros have scale 0; of numbers below
// 127 / 3.4e38 the codes are 0.
template <class T> HWY_INLINE QuantisedRun QuantiseRun(const T *x, const T *smooth, int64_t n, int8_t *codes) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const RowTimes<T> row{x, smooth, n};
  auto most = hn::Zero(d), bad = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto v = hn::Abs(row.load(d, i));
    most = hn::Max(most, v);
    bad = hn::Add(bad, hn::Mul(v, hn::Zero(d)));  // 0, or NaN
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most)), not_finite = hn::GetLane(hn::SumOfLanes(d, bad));
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const auto factor = hn::Set(d, inverse <= 3.4e38f ? inverse : 0.0f);  // 127 / largest overflows
  auto sum = hn::Zero(di);
  for (int64_t i = 0; i < n; i += lanes) {
    auto v = hn::NearestInt(hn::Mul(row.load(d, i), factor));
    if (not_finite != 0) v = hn::Zero(di);
    sum = hn::Add(sum, v);
    if (n - i >= lanes) {
      hn::StoreU(hn::DemoteTo(d8, v), d8, codes + i);
    } else {
      HWY_ALIGN int8_t last[hn::MaxLanes(d)];
      hn::Store(hn::DemoteTo(d8, v), d8, last);
      for (int64_t j = i; j < n; ++j) codes[j] = last[j - i];
    }
  }
  return {largest / 127.0f + not_finite, hn::GetLane(hn::SumOfLanes(di, sum))};
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
