// Per SIMD target: a block of a matrix turned in vectors.
#if defined(OPGRAFT_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_TURN_INL_H_
#undef OPGRAFT_TURN_INL_H_
#else
#define OPGRAFT_TURN_INL_H_
#endif

#include "hwy/cache_control.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Blocks of 16 bytes, from rows of x as many apart as a block has elements.
template <class D, class U> HWY_INLINE hn::Vec<D> LoadBlocks(D d, const U *x, int64_t step) {
  if constexpr (hn::MaxLanes(D()) * sizeof(U) > 16) {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, x + int64_t(hn::MaxLanes(half)) * step, step), LoadBlocks(half, x, step));
  } else {
    return hn::LoadU(d, x);
  }
}

// 16 bytes each of as many rows of x as a vector has lanes.
template <bool kPast, class D, class U>
HWY_INLINE void TurnBlock(D d, const U *x, int64_t x_step, U *y, int64_t y_step) {
  constexpr int kSide = 16 / sizeof(U);
  hn::Vec<D> a[kSide], b[kSide];
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r) a[r] = LoadBlocks(d, x + r * x_step, x_step);
#pragma GCC unroll 4
  for (int n = 1; n < kSide; n *= 2) {
#pragma GCC unroll 8
    for (int r = 0; r < kSide / 2; ++r) {
      b[2 * r] = hn::InterleaveLower(d, a[r], a[r + kSide / 2]);
      b[2 * r + 1] = hn::InterleaveUpper(d, a[r], a[r + kSide / 2]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kSide; ++r) a[r] = b[r];
  }
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r) {
    if constexpr (kPast) hn::Stream(a[r], d, y + r * y_step);
    else hn::StoreU(a[r], d, y + r * y_step);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
