// Float32 GEMM over packed panels, per SIMD target. B is held as panels of PanelWidth() columns, each
// k-major and padded with zeros: one step of k reads two adjacent vectors of B and broadcasts one
// element of each row of A. A panel of K rows (K * 128 bytes with AVX-512) stays in L2, and in L1 up to
// K = 384, while the row tiles pass over it, so K needs no blocking.
#include "aot_ops/common/gemm.h"

#if defined(OPGRAFT_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_GEMM_INL_H_
#undef OPGRAFT_GEMM_INL_H_
#else
#define OPGRAFT_GEMM_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/gelu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// 2 R accumulators + 2 of B + 1 of A fit the registers: 32 with AVX-512, else 16.
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
using GemmVec = hn::Vec<hn::ScalableTag<float>>;
constexpr int64_t kPanel = 2 * int64_t(hn::MaxLanes(hn::ScalableTag<float>()));

int64_t PanelWidth() { return kPanel; }
int64_t TileRows() { return kTileRows; }

// c[R, kPanel] = (accumulate ? c : 0) + a[R, k] b[k, kPanel]; `b` is one panel. With few rows one chain
// of additions per accumulator is too short to hide the latency of FMA: k is split over kSplit chains.
// Meanwhile the k * kPanel floats at `ahead` are fetched into L2.
template <int R, int kSplit> HWY_INLINE void MicroTile(const float *HWY_RESTRICT a, int64_t lda,
                                                       const float *HWY_RESTRICT b, int64_t k, float *c, int64_t ldc,
                                                       bool accumulate, const float *ahead) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2;
  GemmVec lo[R][kSplit], hi[R][kSplit];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int s = 0; s < kSplit; ++s) lo[r][s] = hi[r][s] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + kSplit <= k; i += kSplit) {
#pragma GCC unroll 4
    for (int s = 0; s < kSplit; ++s) {
      const auto b0 = hn::LoadU(d, b + (i + s) * kPanel), b1 = hn::LoadU(d, b + (i + s) * kPanel + kLanes);
      __builtin_prefetch(ahead + (i + s) * kPanel, 0, 2);
      if (kLanes == 16) __builtin_prefetch(ahead + (i + s) * kPanel + kLanes, 0, 2);  // a line is 16 floats
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto x = hn::Set(d, a[r * lda + i + s]);
        lo[r][s] = hn::MulAdd(x, b0, lo[r][s]);
        hi[r][s] = hn::MulAdd(x, b1, hi[r][s]);
      }
    }
  }
  if constexpr (kSplit > 1) {
    for (; i < k; ++i) {
      const auto b0 = hn::LoadU(d, b + i * kPanel), b1 = hn::LoadU(d, b + i * kPanel + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto x = hn::Set(d, a[r * lda + i]);
        lo[r][0] = hn::MulAdd(x, b0, lo[r][0]);
        hi[r][0] = hn::MulAdd(x, b1, hi[r][0]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int s = 1; s < kSplit; ++s) {
        lo[r][0] = hn::Add(lo[r][0], lo[r][s]);
        hi[r][0] = hn::Add(hi[r][0], hi[r][s]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    float *row = c + r * ldc;
    if (accumulate) {
      lo[r][0] = hn::Add(lo[r][0], hn::LoadU(d, row));
      hi[r][0] = hn::Add(hi[r][0], hn::LoadU(d, row + kLanes));
    }
    hn::StoreU(lo[r][0], d, row);
    hn::StoreU(hi[r][0], d, row + kLanes);
  }
}

HWY_NOINLINE void MicroRows(int64_t rows, const float *a, int64_t lda, const float *b, int64_t k, float *c, int64_t ldc,
                            bool accumulate, const float *ahead = nullptr) {
  if (!ahead) ahead = b;
  switch (rows) {
    case 1: return MicroTile<1, 4>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 2: return MicroTile<2, 2>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 3: return MicroTile<3, 2>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 4: return MicroTile<4, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 5: return MicroTile<5, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 6: return MicroTile<6, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
#if HWY_TARGET <= HWY_AVX3
    case 7: return MicroTile<7, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 8: return MicroTile<8, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 9: return MicroTile<9, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 10: return MicroTile<10, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 11: return MicroTile<11, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
    case 12: return MicroTile<12, 1>(a, lda, b, k, c, ldc, accumulate, ahead);
#endif
    default: return;
  }
}

// Rows of the tile that begins at `row` when m rows are cut into the fewest, evenly filled tiles.
HWY_INLINE int64_t TileSize(int64_t m, int64_t row) {
  const int64_t left = m - row, tiles = (left + kTileRows - 1) / kTileRows;
  return (left + tiles - 1) / tiles;
}

template <class D> HWY_INLINE GemmVec Activate(D d, Activation a, GemmVec v) {
  switch (a) {
    case Activation::kGelu: return GeluErf(d, v);
    case Activation::kGeluTanh: return GeluTanh(d, v);
    case Activation::kRelu: return hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v);  // keeps NaN
    case Activation::kSilu: return Silu(d, v);
    default: return v;
  }
}

// Bias, activation and residual of one tile that lies in `acc`, written to C as T.
template <class T> HWY_NOINLINE void Epilogue(const GemmTile &g, const float *acc, int64_t row, int64_t rows,
                                              int64_t column, int64_t width) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2;
  const T *bias = static_cast<const T *>(g.bias);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * g.ldc + column;
    T *c = static_cast<T *>(g.c) + at;
    const T *residual = g.residual ? static_cast<const T *>(g.residual) + at : nullptr;
    for (int64_t j = 0; j < width; j += kLanes) {
      const size_t n = size_t(width - j < kLanes ? width - j : kLanes);
      auto v = hn::LoadU(d, acc + r * kPanel + j);
      if (n == size_t(kLanes)) {
        if (bias) v = hn::Add(v, LoadF32(d, bias + column + j));
        v = Activate(d, g.activation, v);
        if (residual) v = hn::Add(v, LoadF32(d, residual + j));
        StoreF32(v, d, c + j);
      } else {
        if (bias) v = hn::Add(v, LoadF32N(d, bias + column + j, n));
        v = Activate(d, g.activation, v);
        if (residual) v = hn::Add(v, LoadF32N(d, residual + j, n));
        StoreF32N(v, d, c + j, n);
      }
    }
  }
}

// Rows [m0, m1) of one panel of C.
template <class T> void GemmPanel(const GemmTile &g, int64_t panel, int64_t m0, int64_t m1) {
  HWY_ALIGN float acc[kTileRows * kPanel];
  const int64_t column = panel * kPanel, width = g.n - column < kPanel ? g.n - column : kPanel;
  const float *b = g.b + column * g.k;
  const bool plain =
      std::is_same_v<T, float> && width == kPanel && !g.bias && !g.residual && g.activation == Activation::kNone;
  for (int64_t row = m0; row < m1;) {
    const int64_t rows = TileSize(m1, row);
    const float *a = g.a + row * g.lda;
    // The first rows stream this panel in; the others have time to bring the next one.
    const float *ahead = row == m0 ? b + 16 * kPanel : b + g.k * kPanel;
    if (plain) {
      MicroRows(rows, a, g.lda, b, g.k, static_cast<float *>(g.c) + row * g.ldc + column, g.ldc, false, ahead);
    } else {
      MicroRows(rows, a, g.lda, b, g.k, acc, kPanel, false, ahead);
      Epilogue<T>(g, acc, row, rows, column, width);
    }
    row += rows;
  }
}

// dst[j + i * ld] = src[i * step + j * stride] for i < outer, j < inner: a row copy where stride is 1,
// 4 x 4 transposes where step is 1.
template <class T>
void Gather(const T *src, int64_t step, int64_t stride, int64_t outer, int64_t inner, float *dst, int64_t ld) {
  const hn::ScalableTag<float> d;
  const hn::FixedTag<float, 4> d4;
  const int64_t lanes = int64_t(hn::Lanes(d));
  if (stride == 1) {
    for (int64_t i = 0; i < outer; ++i) {
      int64_t j = 0;
      for (; j + lanes <= inner; j += lanes) hn::StoreU(LoadF32(d, src + i * step + j), d, dst + i * ld + j);
      for (; j < inner; ++j) dst[i * ld + j] = float(src[i * step + j]);
    }
    return;
  }
  const int64_t whole_i = step == 1 ? outer / 4 * 4 : 0, whole_j = step == 1 ? inner / 4 * 4 : 0;
  for (int64_t j = 0; j < whole_j; j += 4) {
    const T *s = src + j * stride;
    for (int64_t i = 0; i < whole_i; i += 4) {
      const auto r0 = LoadF32(d4, s + i), r1 = LoadF32(d4, s + stride + i);
      const auto r2 = LoadF32(d4, s + 2 * stride + i), r3 = LoadF32(d4, s + 3 * stride + i);
      const auto p0 = hn::InterleaveLower(d4, r0, r2), p1 = hn::InterleaveLower(d4, r1, r3);
      const auto p2 = hn::InterleaveUpper(d4, r0, r2), p3 = hn::InterleaveUpper(d4, r1, r3);
      float *o = dst + i * ld + j;
      hn::StoreU(hn::InterleaveLower(d4, p0, p1), d4, o);
      hn::StoreU(hn::InterleaveUpper(d4, p0, p1), d4, o + ld);
      hn::StoreU(hn::InterleaveLower(d4, p2, p3), d4, o + 2 * ld);
      hn::StoreU(hn::InterleaveUpper(d4, p2, p3), d4, o + 3 * ld);
    }
  }
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t j = i < whole_i ? whole_j : 0; j < inner; ++j) dst[i * ld + j] = float(src[i * step + j * stride]);
}

// Panels [p0, p1) of B[k, n] (row_stride between k, column_stride between n) into dst, the whole packed B.
template <class T> void Pack(const MatrixRef &b, int64_t k, int64_t n, int64_t p0, int64_t p1, float *dst) {
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t column = p * kPanel, width = n - column < kPanel ? n - column : kPanel;
    float *panel = dst + column * k;
    Gather(static_cast<const T *>(b.data) + column * b.column_stride, b.row_stride, b.column_stride, k, width, panel,
           kPanel);
    for (int64_t i = 0; width < kPanel && i < k; ++i)
      for (int64_t j = width; j < kPanel; ++j) panel[i * kPanel + j] = 0.0f;
  }
}

// Rows [m0, m1) of A[m, k] as float32 rows `ld` apart; dst is the whole copy.
template <class T> void Widen(const MatrixRef &a, int64_t k, int64_t m0, int64_t m1, float *dst, int64_t ld) {
  Gather(static_cast<const T *>(a.data) + m0 * a.row_stride, a.row_stride, a.column_stride, m1 - m0, k, dst + m0 * ld,
         ld);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
