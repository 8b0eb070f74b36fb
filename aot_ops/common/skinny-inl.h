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

template <class D> HWY_INLINE hn::Vec<D> LoadF32(D d, const int8_t *p) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, p)));
}

// What is fetched while rows of B are read: nothing, each row kAhead further on, or, where runs are short, the rows
// that come next, which no stream foresees.
enum class Fetch { kNothing, kAhead, kNextRows };

// sums[m][width], `ld` apart, of columns [column, column + width) and rows [k0, k1) of B, whose rows are contiguous:
// kRows of them at a time, side by side, each a stream of its own.
template <int kRows, Fetch kFetch, class T> HWY_INLINE void RowsOf(const GemmTile &g, const MatrixRef &b, int64_t k0,
                                                                   int64_t k1, int64_t column, int64_t width,
                                                                   float *sums, int64_t ld) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const T *from = static_cast<const T *>(b.data) + column;
  constexpr int64_t kAhead = 1024 / int64_t(sizeof(T));
  const auto steps = [&](int64_t k, auto count) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    const T *row = from + k * b.row_stride;
    int64_t j = 0;
    for (; j + lanes <= width; j += lanes) {
      hn::Vec<decltype(d)> v[kCount];
#pragma GCC unroll 12
      for (int i = 0; i < kCount; ++i) {
        v[i] = LoadF32(d, row + i * b.row_stride + j);
        if (kCount > 1 && kFetch == Fetch::kAhead) __builtin_prefetch(row + i * b.row_stride + j + kAhead);
        if (kCount > 1 && kFetch == Fetch::kNextRows) __builtin_prefetch(row + (i + kRows) * b.row_stride + j);
      }
      for (int64_t r = 0; r < g.m; ++r) {
        const float *a = g.a + r * g.lda + k;
        auto sum = hn::LoadU(d, sums + r * ld + j);
#pragma GCC unroll 12
        for (int i = 0; i < kCount; ++i) sum = hn::MulAdd(hn::Set(d, a[i]), v[i], sum);
        hn::StoreU(sum, d, sums + r * ld + j);
      }
    }
    for (; j < width; ++j)
      for (int64_t r = 0; r < g.m; ++r)
        for (int i = 0; i < kCount; ++i) sums[r * ld + j] += g.a[r * g.lda + k + i] * float(row[i * b.row_stride + j]);
  };
  for (int64_t r = 0; r < g.m; ++r)
    for (int64_t j = 0; j < width; ++j) sums[r * ld + j] = 0.0f;
  int64_t k = k0;
  for (; k + kRows <= k1; k += kRows) steps(k, std::integral_constant<int, kRows>());
  for (; k + 4 <= k1; k += 4) steps(k, std::integral_constant<int, 4>());
  for (; k < k1; ++k) steps(k, std::integral_constant<int, 1>());
}

// The same of one or two rows of A, where runs are long. Intel's cores fetch less ahead of four streams than memory
// gives: 1 KB more is 0.91 of the time (Emerald Rapids, 4096 x 11008; 2 KB 0.95, 512 bytes 0.99). AMD's fetch enough;
// of float32 more streams are better: twelve take 0.76 to 0.96 of four's time (Zen 5), of bfloat16 1.06.
template <class T> HWY_INLINE void LongRowsOf(const GemmTile &g, const MatrixRef &b, int64_t k0, int64_t k1,
                                              int64_t column, int64_t width, float *sums, int64_t ld) {
  constexpr int kMany = sizeof(T) < 4 ? 4 : HWY_TARGET <= HWY_AVX3 ? 12 : 8;  // as there are registers
  static const bool intel = simd::intel();
  if (intel) RowsOf<4, Fetch::kAhead, T>(g, b, k0, k1, column, width, sums, ld);
  else RowsOf<kMany, Fetch::kNothing, T>(g, b, k0, k1, column, width, sums, ld);
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
HWY_INLINE void ColumnsOf(const GemmTile &g, const MatrixRef &b, int64_t column, int64_t width, float *sums) {
  const int64_t ldb = b.column_stride;
  const T *from = static_cast<const T *>(b.data) + column * ldb;
  int64_t j = 0;
  for (; j + 4 <= width; j += 4) DotRows<4>(g, from + j * ldb, ldb, sums + j, width);
  for (; j < width; ++j) DotRows<1>(g, from + j * ldb, ldb, sums + j, width);
}

// All rows of columns [n0, n1), at most kSkinnyFloats of sums; B is of type B and lies at `b`. With `partial`, [m][n],
// only rows [k0, k1) of B: their sums go there, for SkinnySum.
template <class T, class B> HWY_INLINE void SkinnyOf(const GemmTile &g, const MatrixRef &b, int64_t n0, int64_t n1,
                                                     int64_t k0, int64_t k1, float *partial) {
  HWY_ALIGN float own[kSkinnyFloats];
  const int64_t width = n1 - n0;
  if (b.column_stride != 1) ColumnsOf<B>(g, b, n0, width, own);
  else if (g.m <= 2) LongRowsOf<B>(g, b, k0, k1, n0, width, own, width);
  else RowsOf<8, Fetch::kNextRows, B>(g, b, k0, k1, n0, width, own, width);
  if (!partial) return Epilogue<T>(g, own, width, 0, g.m, n0, width);
  // Not summed there: rows of C a power of two apart would share the sets of L1.
  for (int64_t r = 0; r < g.m; ++r) std::memcpy(partial + r * g.n + n0, own + r * width, size_t(width) * sizeof(float));
}

template <class T>
void Skinny(const GemmTile &g, const MatrixRef &b, int64_t n0, int64_t n1, int64_t k0, int64_t k1, float *partial) {
  SkinnyOf<T, T>(g, b, n0, n1, k0, k1, partial);
}

// C at columns [n0, n1) from the partial sums of `pieces`, in their order.
template <class T> void SkinnySum(const GemmTile &g, float *partial, int64_t pieces, int64_t n0, int64_t n1) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), next = g.m * g.n;
  for (int64_t p = 1; p < pieces; ++p)
    for (int64_t r = 0; r < g.m; ++r) {
      float *to = partial + r * g.n;
      const float *from = to + p * next;
      int64_t j = n0;
      for (; j + lanes <= n1; j += lanes) hn::StoreU(hn::Add(hn::LoadU(d, to + j), hn::LoadU(d, from + j)), d, to + j);
      for (; j < n1; ++j) to[j] += from[j];
    }
  Epilogue<T>(g, partial + n0, g.n, 0, g.m, n0, n1 - n0);
}

#ifdef OPGRAFT_PRODUCTS  // products.cc has what product-host.h calls
#define OPGRAFT_PRODUCTS_OF(T)                                                                                      \
  OPGRAFT_PRODUCTS template void Epilogue<T>(const GemmTile &, const float *, int64_t, int64_t, int64_t, int64_t,   \
                                             int64_t, bool);                                                        \
  OPGRAFT_PRODUCTS template void GemmPanels<T>(const GemmTile &, int64_t, int64_t, int64_t, int64_t);               \
  OPGRAFT_PRODUCTS template void Pack<T>(const MatrixRef &, int64_t, int64_t, int64_t, int64_t, float *);           \
  OPGRAFT_PRODUCTS template void PackPanels<T>(const MatrixRef &, int64_t, int64_t, int64_t, int64_t, int64_t,      \
                                               int64_t, void *);                                                    \
  OPGRAFT_PRODUCTS template void Skinny<T>(const GemmTile &, const MatrixRef &, int64_t, int64_t, int64_t, int64_t, \
                                           float *);                                                                \
  OPGRAFT_PRODUCTS template void SkinnySum<T>(const GemmTile &, float *, int64_t, int64_t, int64_t);                \
  OPGRAFT_PRODUCTS template void Widen<T>(const MatrixRef &, int64_t, int64_t, int64_t, float *, int64_t);
OPGRAFT_PRODUCTS_OF(float)
OPGRAFT_PRODUCTS_OF(::opgraft::float16)
OPGRAFT_PRODUCTS_OF(::opgraft::bfloat16)
#undef OPGRAFT_PRODUCTS_OF
#endif

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
