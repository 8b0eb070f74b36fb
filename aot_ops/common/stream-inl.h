// Per SIMD target: results that go past the caches. streams.h tells when they should.
#if defined(OPGRAFT_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_STREAM_INL_H_
#undef OPGRAFT_STREAM_INL_H_
#else
#define OPGRAFT_STREAM_INL_H_
#endif

#include "hwy/cache_control.h"
#include "aot_ops/common/map-inl.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// y[i] for i < n: whole(i) is a vector from element i on, part(i, k) one of its first k elements. Other threads see
// them when they see what this one stores behind hwy::FlushStream.
template <class D, class Whole, class Part>
HWY_INLINE void StreamRow(D d, float *y, int64_t n, const Whole &whole, const Part &part) {
  const int64_t lanes = int64_t(hn::Lanes(d));
  const int64_t at = int64_t(reinterpret_cast<uintptr_t>(y) / sizeof(float)) & (lanes - 1);
  int64_t i = std::min(-at & (lanes - 1), n);  // up to the first whole vector
  if (i) StoreF32N(part(int64_t(0), size_t(i)), d, y, size_t(i));
  for (; i + lanes <= n; i += lanes) hn::Stream(whole(i), d, y + i);
  if (const size_t rest = size_t(n - i)) StoreF32N(part(i, rest), d, y + i, rest);
}
// All that a thread writes: others see it when they see what this one stores next.
template <class D, class Whole, class Part>
HWY_INLINE void StreamAll(D d, float *y, int64_t n, const Whole &whole, const Part &part) {
  StreamRow(d, y, n, whole, part);
  hwy::FlushStream();
}

// Map, float32 past the caches where `past`; y is none of x then. kRow: one row of several, and the next one of x,
// which the caches have not foreseen while they brought nothing, comes meanwhile.
template <bool kRow, class T, class F, class X, class... More>
HWY_INLINE void MapPastOf(bool past, F f, T *y, int64_t n, const X *x, const More *...more) {
  if constexpr (std::is_same_v<T, float>) {
    const hn::ScalableTag<float> d;
    if (past)
      return StreamRow(
          d, y, n,
          [&](int64_t i) HWY_ATTR {
            if (kRow) __builtin_prefetch(x + n + i);
            return f(d, LoadF32(d, x + i), LoadF32(d, more + i)...);
          },
          [&](int64_t i, size_t k) HWY_ATTR { return f(d, LoadF32N(d, x + i, k), LoadF32N(d, more + i, k)...); });
  }
  Map(f, y, n, x, more...);
}
template <class T, class F, class... X> HWY_INLINE void MapRowPast(bool past, F f, T *y, int64_t n, const X *...x) {
  MapPastOf<true>(past, f, y, n, x...);
}
template <class T, class F, class... X> HWY_INLINE void MapPast(bool past, F f, T *y, int64_t n, const X *...x) {
  MapPastOf<false>(past, f, y, n, x...);
  if (past) hwy::FlushStream();
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
