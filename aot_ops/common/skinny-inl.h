// Products of few rows by a matrix that is not packed, per SIMD target: B is read once, in place and in its own type,
// which packing it would do three times over.
#include "aot_ops/common/gemm.h"

#if defined(OPGRAFT_SKINNY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SKINNY_INL_H_
#undef OPGRAFT_SKINNY_INL_H_
#else
#define OPGRAFT_SKINNY_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

constexpr int64_t kSkinnyFloats = 4096;  // sums of a strip, 16 KiB: they stay in L1

// sums[m][width] of columns [column, column + width) where B's rows are contiguous: eight rows of B at a time, side by
// side, each a stream of its own.
template <class T> void SkinnyRows(const GemmTile &g, const MatrixRef &b, int64_t column, int64_t width, float *sums) {
  constexpr int64_t kRows = 8;
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < g.m * width; ++i) sums[i] = 0.0f;
  const T *from = static_cast<const T *>(b.data) + column;
  int64_t k = 0;
  for (; k + kRows <= g.k; k += kRows) {
    const T *row = from + k * b.row_stride;
    int64_t j = 0;
    for (; j + lanes <= width; j += lanes) {
      hn::Vec<decltype(d)> v[kRows];
#pragma GCC unroll 8
      for (int64_t i = 0; i < kRows; ++i) {
        v[i] = LoadF32(d, row + i * b.row_stride + j);
        __builtin_prefetch(row + (i + kRows) * b.row_stride + j);
      }
      for (int64_t r = 0; r < g.m; ++r) {
        const float *a = g.a + r * g.lda + k;
        auto sum = hn::LoadU(d, sums + r * width + j);
#pragma GCC unroll 8
        for (int64_t i = 0; i < kRows; ++i) sum = hn::MulAdd(hn::Set(d, a[i]), v[i], sum);
        hn::StoreU(sum, d, sums + r * width + j);
      }
    }
    for (; j < width; ++j)
      for (int64_t r = 0; r < g.m; ++r)
        for (int64_t i = 0; i < kRows; ++i)
          sums[r * width + j] += g.a[r * g.lda + k + i] * float(row[i * b.row_stride + j]);
  }
  for (; k < g.k; ++k)
    for (int64_t r = 0; r < g.m; ++r) {
      const T *row = from + k * b.row_stride;
      const auto x = hn::Set(d, g.a[r * g.lda + k]);
      float *sum = sums + r * width;
      int64_t j = 0;
      for (; j + lanes <= width; j += lanes)
        hn::StoreU(hn::MulAdd(x, LoadF32(d, row + j), hn::LoadU(d, sum + j)), d, sum + j);
      for (; j < width; ++j) sum[j] += g.a[r * g.lda + k] * float(row[j]);
    }
}

// sums[r][j] for R rows of A and kColumns columns of B that are contiguous along K.
template <int R, int kColumns, class T>
HWY_INLINE void Dots(const float *a, int64_t lda, const T *b, int64_t ldb, int64_t k, float *sums, int64_t ld) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[R][kColumns], v[kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + lanes <= k; i += lanes) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) v[j] = LoadF32(d, b + j * ldb + i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const auto x = hn::LoadU(d, a + r * lda + i);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::MulAdd(x, v[j], sum[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      float s = hn::GetLane(hn::SumOfLanes(d, sum[r][j]));
      for (int64_t l = i; l < k; ++l) s += a[r * lda + l] * float(b[j * ldb + l]);
      sums[r * ld + j] = s;
    }
  }
}
template <int kColumns, class T>
HWY_INLINE void DotRows(const GemmTile &g, const T *b, int64_t ldb, float *sums, int64_t ld) {
  for (int64_t r = 0; r < g.m;) {
    const float *a = g.a + r * g.lda;
    float *to = sums + r * ld;
    switch (g.m - r) {
      case 1: Dots<1, kColumns>(a, g.lda, b, ldb, g.k, to, ld), r += 1; break;
      case 2: Dots<2, kColumns>(a, g.lda, b, ldb, g.k, to, ld), r += 2; break;
      default: Dots<3, kColumns>(a, g.lda, b, ldb, g.k, to, ld), r += 3;
    }
  }
}
// The same where B's columns are contiguous: four at a time.
template <class T>
void SkinnyColumns(const GemmTile &g, const MatrixRef &b, int64_t column, int64_t width, float *sums) {
  const int64_t ldb = b.column_stride;
  const T *from = static_cast<const T *>(b.data) + column * ldb;
  int64_t j = 0;
  for (; j + 4 <= width; j += 4) DotRows<4>(g, from + j * ldb, ldb, sums + j, width);
  for (; j < width; ++j) DotRows<1>(g, from + j * ldb, ldb, sums + j, width);
}

// All rows of columns [n0, n1); B is of type T and lies at `b`.
template <class T> void Skinny(const GemmTile &g, const MatrixRef &b, int64_t n0, int64_t n1) {
  HWY_ALIGN float sums[kSkinnyFloats];
  const int64_t lanes = kPanel / 2, strip = kSkinnyFloats / g.m / lanes * lanes;
  for (int64_t n = n0; n < n1; n += strip) {
    const int64_t width = n1 - n < strip ? n1 - n : strip;
    if (b.column_stride == 1) SkinnyRows<T>(g, b, n, width, sums);
    else SkinnyColumns<T>(g, b, n, width, sums);
    Epilogue<T>(g, sums, width, 0, g.m, n, width);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
