// RMSNorm of short rows, per SIMD target.
#if defined(OPGRAFT_RMSNORM_SHORT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_RMSNORM_SHORT_ROWS_INL_H_
#undef OPGRAFT_RMSNORM_SHORT_ROWS_INL_H_
#else
#define OPGRAFT_RMSNORM_SHORT_ROWS_INL_H_
#endif

#include "aot_ops/common/norm-inl.h"
#include "aot_ops/common/rows_in_vector-inl.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// SumOfSquares of `count` rows of n elements, and a vector of ones behind them. in: where rows fit into a vector.
template <class T>
HWY_INLINE void SumsOfSquares(const T *x, int64_t n, int64_t count, const RowsInVector *in, float *sums) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  if (in) {
    for (int64_t r = 0; r < count; r += in->rows) {
      const int64_t left = (count - r) * n;
      const auto v = left >= lanes ? LoadF32(d, x + r * n) : LoadF32N(d, x + r * n, size_t(left));
      hn::StoreU(hn::TableLookupLanes(in->Sum(hn::Mul(v, v)), in->first), d, sums + r);
    }
  } else {
    for (int64_t r = 0; r < count; ++r) sums[r] = SumOfSquares(x + r * n, n);
  }
  hn::StoreU(hn::Set(d, 1.0f), d, sums + count);
}

// InverseRms of `count` sums of squares, in their place; 0 for one that float32 did not hold, and false.
HWY_INLINE bool InverseRmsOf(float *sums, int64_t n, int64_t count, double epsilon) {
  const hn::ScalableTag<float> d;
  const auto inverse = hn::Set(d, 1.0f / float(n)), e = hn::Set(d, float(epsilon));
  auto all = hn::Eq(e, e);
  for (int64_t i = 0; i < count; i += int64_t(hn::Lanes(d))) {
    const auto sum = hn::LoadU(d, sums + i), mean = hn::MulAdd(sum, inverse, e);
    const auto held = hn::And(hn::Le(sum, hn::Set(d, 3e38f)), hn::Ge(mean, hn::Set(d, 1e-30f)));
    all = hn::And(all, held);
    hn::StoreU(hn::IfThenElseZero(held, hn::Div(hn::Set(d, 1.0f), hn::Sqrt(mean))), d, sums + i);
  }
  return hn::AllTrue(d, all);
}

// y = x scale * gamma of `count` rows with a scale each, which may be read up to a vector beyond; gamma may be null.
template <class T, class G> HWY_INLINE void ScaleRows(const T *x, const float *scales, const G *gamma, T *y, int64_t n,
                                                      int64_t count, const RowsInVector *in, bool past) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  if (!in) {
    for (int64_t r = 0; r < count; ++r) ScaleRow(x + r * n, scales[r], gamma, y + r * n, n, past);
    return;
  }
  const auto factor = in->Repeated(gamma, n, 1.0f);
  const auto of = [&](int64_t r, auto v) HWY_ATTR {
    return hn::Mul(hn::Mul(v, hn::TableLookupLanes(hn::LoadU(d, scales + r), in->each)), factor);
  };
  int64_t r = 0;
  if (in->width == lanes)
    for (; r + in->rows <= count; r += in->rows) StoreF32(of(r, LoadF32(d, x + r * n)), d, y + r * n);
  for (; r < count; r += in->rows) {  // y may be x: no element more
    const size_t k = size_t(std::min(in->rows, count - r) * n);
    StoreF32N(of(r, LoadF32N(d, x + r * n, k)), d, y + r * n, k);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
