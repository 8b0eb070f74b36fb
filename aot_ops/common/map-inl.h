// The loop of element-wise kernels, per SIMD target.
#if defined(OPGRAFT_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_MAP_INL_H_
#undef OPGRAFT_MAP_INL_H_
#else
#define OPGRAFT_MAP_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// y[i] = f(d, x[i]...) over n elements: f works on float32 vectors, storage types round once. The last,
// partial vector reads and writes n elements and no more. y may be one of x.
template <class T, class F, class... X> HWY_INLINE void Map(F f, T *y, int64_t n, const X *...x) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(f(d, LoadF32(d, x + i)...), d, y + i);
  if (size_t rest = size_t(n - i)) StoreF32N(f(d, LoadF32N(d, x + i, rest)...), d, y + i, rest);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
