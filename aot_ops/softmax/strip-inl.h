// Softmax along columns of float32 in strips as wide as the caches allow, per SIMD target.
#if defined(OPGRAFT_SOFTMAX_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SOFTMAX_STRIP_INL_H_
#undef OPGRAFT_SOFTMAX_STRIP_INL_H_
#else
#define OPGRAFT_SOFTMAX_STRIP_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// A strip of x and one of y take half of a usual L2 or less, and a row of it some lines: the next ones are fetched as
// they are come to.
inline constexpr int64_t kStripBytes = 512 << 10, kStripMost = 1024;
// How many of `columns` neighbouring ones of n elements make a strip; 0: too few, or so small that
// what L1 keeps beside is as fast.
HWY_INLINE int64_t strip_width(int64_t n, int64_t columns) {
  const int64_t least = 4 * int64_t(hn::Lanes(hn::ScalableTag<float>()));
  if (n < 16 || columns < least || (columns < 2 * least && n <= kKept / least)) return 0;
  const int64_t fits = kStripBytes / int64_t(2 * sizeof(float)) / std::max<int64_t>(n, 1);
  return std::min({fits, columns, kStripMost}) / least * least;
}

// `width` columns of n elements that are `stride` apart, `width` a multiple of four vectors. y, which may be x, keeps
// the exponentials.
template <class Below>
HWY_NOINLINE void Strip(const float *x, float *y, int64_t n, int64_t stride, int64_t width, const Below &below) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  HWY_ALIGN float most[kStripMost], sums[kStripMost];
  for (int64_t i = 0; i < width; i += lanes) {
    hn::Store(hn::LoadU(d, x + i), d, most + i);
    hn::Store(hn::Zero(d), d, sums + i);
  }
  for (int64_t k = 1; k < n; ++k)
    for (int64_t i = 0; i < width; i += lanes)
      hn::Store(hn::Max(hn::Load(d, most + i), hn::LoadU(d, x + k * stride + i)), d, most + i);
  for (int64_t k = 0; k < n; ++k)
    for (int64_t i = 0; i < width; i += lanes) {
      const auto e = ExpBelow0(d, below(hn::LoadU(d, x + k * stride + i), hn::Load(d, most + i)));
      hn::StoreU(e, d, y + k * stride + i);
      hn::Store(hn::Add(hn::Load(d, sums + i), e), d, sums + i);
    }
  for (int64_t i = 0; i < width; i += lanes) hn::Store(hn::Div(hn::Set(d, 1.0f), hn::Load(d, sums + i)), d, sums + i);
  for (int64_t k = 0; k < n; ++k)
    for (int64_t i = 0; i < width; i += lanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, y + k * stride + i), hn::Load(d, sums + i)), d, y + k * stride + i);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
