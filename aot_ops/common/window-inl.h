// Elements a stride apart, per SIMD target.
#if defined(OPGRAFT_WINDOW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_WINDOW_INL_H_
#undef OPGRAFT_WINDOW_INL_H_
#else
#define OPGRAFT_WINDOW_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// src[0], src[2], ... as one vector; reads the element behind the last of them as well.
template <class D, class T> HWY_INLINE hn::Vec<D> EverySecond(D d, const T *src) {
  return hn::ConcatEven(d, LoadF32(d, src + hn::Lanes(d)), LoadF32(d, src));
}

// dst[i] = src[i * stride] for i < n.
template <class T> HWY_INLINE void Spread(const T *src, int64_t stride, int64_t n, float *dst) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  if (stride == 1 && n >= lanes) {  // the last vector lies over the one before
    for (; i + lanes <= n; i += lanes) hn::StoreU(LoadF32(d, src + i), d, dst + i);
    if (i < n) hn::StoreU(LoadF32(d, src + n - lanes), d, dst + n - lanes);
    return;
  }
  if (stride == 2 && n > lanes) {  // likewise, of odd elements, lest the one behind the last is read
    for (; i + lanes < n; i += lanes) hn::StoreU(EverySecond(d, src + 2 * i), d, dst + i);
    const T *end = src + 2 * (n - lanes) - 1;
    hn::StoreU(hn::ConcatOdd(d, LoadF32(d, end + lanes), LoadF32(d, end)), d, dst + n - lanes);
    return;
  }
  for (; i < n; ++i) dst[i] = float(src[i * stride]);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
