// Per SIMD target: a matrix turned in blocks of vectors.
#if defined(OPGRAFT_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_TURN_INL_H_
#undef OPGRAFT_TURN_INL_H_
#else
#define OPGRAFT_TURN_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "hwy/cache_control.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Blocks of 16 bytes of a vector, from rows of x as many apart as a block has elements; x is of the vector's type, or
// widened to float32.
template <class D, class T> HWY_INLINE hn::Vec<D> LoadBlocks(D d, const T *x, int64_t step) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, x + int64_t(hn::MaxLanes(half)) * step, step), LoadBlocks(half, x, step));
  } else if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return hn::LoadU(d, x);
  } else {
    return LoadF32(d, x);
  }
}

// As many elements of each of as many rows of x as make 16 bytes in y and a vector.
template <bool kPast, class D, class T, class U>
HWY_INLINE void TurnBlock(D d, const T *x, int64_t x_step, U *y, int64_t y_step) {
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

// Whole blocks of `columns` columns of x, then those beside them, from row i of x on; -> the first row that is left.
template <bool kPast, class D, class T, class U> int64_t TurnRows(D d, const T *x, int64_t x_step, U *y, int64_t y_step,
                                                                  int64_t down, int64_t across, int64_t columns,
                                                                  int64_t i) {
  constexpr int64_t kSide = 16 / sizeof(U), kRows = int64_t(hn::MaxLanes(D()));
  const int64_t whole = down / kSide * kSide, end = i + (across - i) / kRows * kRows;
  for (int64_t first = 0; first < whole; first += columns)
    for (int64_t row = i; row < end; row += kRows)
      for (int64_t j = first; j < std::min(first + columns, whole); j += kSide)
        TurnBlock<kPast>(d, x + row * x_step + j, x_step, y + j * y_step + row, y_step);
  return end;
}

// y[j * y_step + i] = x[i * x_step + j] for j < down, i < across, `columns` columns of x at a time; of y's type, or
// widened to float32. kPast: whole vectors of y go past the caches.
template <bool kPast, class T, class U>
void Turn(const T *x, int64_t x_step, U *y, int64_t y_step, int64_t down, int64_t across, int64_t columns) {
  constexpr int64_t kSide = 16 / sizeof(U);
  int64_t turned = TurnRows<kPast>(hn::ScalableTag<U>(), x, x_step, y, y_step, down, across, columns, 0);
  turned = TurnRows<false>(hn::FixedTag<U, kSide>(), x, x_step, y, y_step, down, across, columns, turned);
  const int64_t whole = down / kSide * kSide;
  for (int64_t j = 0; j < whole; ++j)
    for (int64_t i = turned; i < across; ++i) y[j * y_step + i] = U(x[i * x_step + j]);
  for (int64_t i = 0; i < across; ++i)
    for (int64_t j = whole; j < down; ++j) y[j * y_step + i] = U(x[i * x_step + j]);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
