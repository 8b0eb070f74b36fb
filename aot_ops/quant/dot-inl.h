// Exact products of eight-bit integers, per SIMD target: panels of PanelWidth() columns as in gemm-inl.h, four (VNNI)
// or two steps of k side by side, which one instruction multiplies and adds. Sums wrap modulo 2^32.
#include "aot_ops/quant/quant_matmul.h"

#if defined(OPGRAFT_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_DOT_INL_H_
#undef OPGRAFT_DOT_INL_H_
#else
#define OPGRAFT_DOT_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/amx-inl.h"
#include "aot_ops/common/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

using DotVec = hn::Vec<hn::ScalableTag<int32_t>>;

// Steps of k side by side; K is padded with zeros.
HWY_INLINE int64_t Together() { return ::opgraft::simd::vnni() ? 4 : 2; }
HWY_INLINE int64_t Padded(int64_t k) { return ::opgraft::dot_padded(k); }

// sums[R, kPanel] of R rows of A and one panel. With VNNI a row holds unsigned bytes (of signed
// ones plus 128), else int16.
template <int R, bool kVnni>
HWY_INLINE void DotTileOf(const void *a, int64_t lda, const int8_t *b, int64_t k, int32_t *sums) {
  const hn::ScalableTag<int32_t> d;
  const hn::Repartition<int16_t, decltype(d)> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  constexpr int64_t kLanes = kPanel / 2, kStep = kVnni ? 4 : 2;
  DotVec lo[R], hi[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) lo[r] = hi[r] = hn::Zero(d);
  RowsTogether<R> from(a, lda);
  for (int64_t i = 0; i < k; i += kStep, from.advance(4)) {
    const int8_t *at = b + i * kPanel;
    __builtin_prefetch(at + 2048, 0, 2);
#if HWY_TARGET == HWY_AVX3
    if constexpr (kVnni) {
      const auto *at32 = reinterpret_cast<const int32_t *>(at);
      __builtin_prefetch(at + 2048 + 64, 0, 2);
      const auto b0 = hn::LoadU(d, at32), b1 = hn::LoadU(d, at32 + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, from.at(r), 4);
        const auto x = hn::Set(d, four);
        // As assembly, as in simd.h: a caller compiled without VNNI could not inline the intrinsic.
        asm("vpdpbusd %2, %1, %0" : "+v"(lo[r].raw) : "v"(x.raw), "v"(b0.raw));
        asm("vpdpbusd %2, %1, %0" : "+v"(hi[r].raw) : "v"(x.raw), "v"(b1.raw));
      }
      continue;
    }
#endif
    const auto b0 = hn::PromoteTo(d16, hn::LoadU(d8, at)), b1 = hn::PromoteTo(d16, hn::LoadU(d8, at + 2 * kLanes));
    auto none = hn::Zero(d);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int32_t two;
      std::memcpy(&two, from.at(r), 4);
      const auto x = hn::BitCast(d16, hn::Set(d, two));
      lo[r] = hn::ReorderWidenMulAccumulate(d, x, b0, lo[r], none);
      hi[r] = hn::ReorderWidenMulAccumulate(d, x, b1, hi[r], none);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    hn::StoreU(lo[r], d, sums + r * kPanel);
    hn::StoreU(hi[r], d, sums + r * kPanel + kLanes);
  }
}

template <bool kVnni>
HWY_NOINLINE void DotRowsOf(int64_t rows, const void *a, int64_t lda, const int8_t *b, int64_t k, int32_t *sums) {
#define OPGRAFT_TILE(R) \
  case R: return DotTileOf<R, kVnni>(a, lda, b, k, sums)
  switch (rows) {
    OPGRAFT_TILE(1);
    OPGRAFT_TILE(2);
    OPGRAFT_TILE(3);
    OPGRAFT_TILE(4);
    OPGRAFT_TILE(5);
    OPGRAFT_TILE(6);
#if HWY_TARGET <= HWY_AVX3
    OPGRAFT_TILE(7);
    OPGRAFT_TILE(8);
    OPGRAFT_TILE(9);
    OPGRAFT_TILE(10);
    OPGRAFT_TILE(11);
    OPGRAFT_TILE(12);
#endif
    default: return;
  }
#undef OPGRAFT_TILE
}

template <class D> HWY_INLINE hn::Vec<D> LoadSome(D d, const hn::TFromD<D> *p, size_t n) {
  if (n == hn::Lanes(d)) return hn::LoadU(d, p);
  HWY_ALIGN hn::TFromD<D> some[hn::MaxLanes(d)] = {};
  for (size_t i = 0; i < n; ++i) some[i] = p[i];
  return hn::Load(d, some);
}

// Rounds to nearest even and saturates; NaN gives 0.
template <class D> HWY_INLINE void StoreInt8(hn::Vec<D> v, D d, int8_t *to, size_t n) {
  const hn::RebindToSigned<D> di;
  v = hn::IfThenElse(hn::IsNaN(v), hn::Zero(d), hn::Min(hn::Max(v, hn::Set(d, -128.0f)), hn::Set(d, 127.0f)));
  HWY_ALIGN int32_t lanes[hn::MaxLanes(di)];
  hn::Store(hn::NearestInt(v), di, lanes);
  for (size_t i = 0; i < n; ++i) to[i] = int8_t(lanes[i]);
}

// Columns of a panel, rows of C from `row` on, whose sums lie in a tile.
struct DotPlace {
  int64_t row, column, width;
  int32_t shift;  // what A's numbers are too large by
};
// What follows the sums of `rows` rows; written to C as T.
template <class T>
HWY_INLINE void DotFollow(const DotTile &g, const DotPlace &at, int64_t row, int64_t rows, const int32_t *sums) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<int32_t> di;
  constexpr int64_t kLanes = kPanel / 2;
  const int64_t column = at.column, width = at.width;
  const int32_t shift = at.shift;
  row += at.row;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; j += kLanes) {
      const size_t n = size_t(width - j < kLanes ? width - j : kLanes);
      auto s = hn::LoadU(di, sums + r * kPanel + j);
      if (shift) s = hn::Sub(s, hn::Mul(hn::Set(di, shift), hn::LoadU(di, g.column_sums + column + j)));
      if (g.row_sums) s = hn::Sub(s, hn::Set(di, int32_t(uint32_t(g.b_zero) * uint32_t(g.row_sums[row + r]))));
      if (g.bias) s = hn::Add(s, LoadSome(di, g.bias + column + j, n));
      T *to = static_cast<T *>(g.c) + (row + r) * g.n + column + j;
      if constexpr (std::is_same_v<T, int32_t>) {
        HWY_ALIGN int32_t lanes[kLanes];
        hn::Store(s, di, lanes);
        for (size_t i = 0; i < n; ++i) to[i] = lanes[i];
      } else {
        const auto by_column = [&](const float *p, int64_t step)
                                   HWY_ATTR { return step ? LoadSome(d, p + column + j, n) : hn::Set(d, *p); };
        auto v = hn::Mul(hn::ConvertTo(d, s), by_column(g.scale, g.scale_step));
        if (g.a_scale != 1.0f) v = hn::Mul(v, hn::Set(d, g.a_scale));
        if (g.token_scale) v = hn::Mul(v, hn::Set(d, g.token_scale[row + r]));
        if (g.offset) v = hn::Add(v, by_column(g.offset, g.offset_step));
        if constexpr (std::is_same_v<T, int8_t>) StoreInt8(v, d, to, n);
        else if (n == size_t(kLanes)) StoreF32(v, d, to);
        else StoreF32N(v, d, to, n);
      }
    }
}

// Rows [m0, m1) of panels [p0, p1), as T.
template <class T> HWY_INLINE void DotPanelsOf(const DotTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  const bool vnni = ::opgraft::simd::vnni();
  const int32_t shift = g.zero + (vnni && !g.is_unsigned ? 128 : 0);
  const auto each = [&](int64_t most, const auto &multiply) HWY_ATTR {
    for (int64_t panel = p0; panel < p1; ++panel) {
      const int64_t column = panel * kPanel, width = g.n - column < kPanel ? g.n - column : kPanel;
      const int8_t *b = g.b + column * Padded(g.k);
      for (int64_t row = m0, rows; row < m1; row += rows) {
        rows = most ? std::min(m1 - row, most) : TileSize(m1, row);
        multiply(static_cast<const char *>(g.a) + row * g.lda, rows, b, DotPlace{row, column, width, shift});
      }
    }
  };
#if HWY_TARGET == HWY_AVX3
  if (::opgraft::simd::by_amx(m1 - m0)) {
    const auto follow = [&](const DotPlace &at, int64_t row, int64_t rows, const int32_t *sums)
                            HWY_ATTR { DotFollow<T>(g, at, row, rows, sums); };
    AmxFollowed<int32_t, DotPlace, decltype(follow)> tiles(follow);
    each(::opgraft::simd::kAmxRows, [&](const char *a, int64_t rows, const int8_t *b, const DotPlace &at) HWY_ATTR {
      tiles.Multiply(rows, AmxRows{a, g.lda}, {b, kPanelRow}, Padded(g.k) / 4, {}, at);
    });
    return tiles.Finish();
  }
#endif
  each(0, [&](const char *a, int64_t rows, const int8_t *b, const DotPlace &at) HWY_ATTR {
    HWY_ALIGN int32_t sums[kTileRows * kPanel];
    if (vnni) DotRowsOf<HWY_TARGET == HWY_AVX3>(rows, a, g.lda, b, Padded(g.k), sums);
    else DotRowsOf<false>(rows, a, g.lda, b, Padded(g.k), sums);
    DotFollow<T>(g, at, 0, rows, sums);
  });
}
void DotPanels(const DotTile &g, int32_t dtype, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  switch (dtype) {
    case OPGRAFT_INT32: return DotPanelsOf<int32_t>(g, p0, p1, m0, m1);
    case OPGRAFT_INT8: return DotPanelsOf<int8_t>(g, p0, p1, m0, m1);
    case OPGRAFT_FLOAT32: return DotPanelsOf<float>(g, p0, p1, m0, m1);
    case OPGRAFT_FLOAT16: return DotPanelsOf<::opgraft::float16>(g, p0, p1, m0, m1);
    default: return DotPanelsOf<::opgraft::bfloat16>(g, p0, p1, m0, m1);
  }
}

// Panels [p0, p1) of B[k, n] into dst, the whole packed B, and their columns' sums into `sums`; unsigned numbers less
// 128.
void PackDot(const MatrixRef &b, bool is_unsigned, int64_t k, int64_t n, int64_t p0, int64_t p1, int8_t *dst,
             int32_t *sums) {
  const int64_t together = Together(), padded = Padded(k);
  const auto *from = static_cast<const int8_t *>(b.data);
  const uint8_t flip = is_unsigned ? 0x80 : 0;
  for (int64_t panel = p0; panel < p1; ++panel) {
    const int64_t column = panel * kPanel, width = n - column < kPanel ? n - column : kPanel;
    int8_t *to = dst + column * padded;
    uint32_t sum[kPanel] = {};
    for (int64_t i = 0; i < padded; i += together)
      for (int64_t j = 0; j < kPanel; ++j)
        for (int64_t s = 0; s < together; ++s) {
          const bool inside = j < width && i + s < k;
          const int64_t at = (i + s) * b.row_stride + (column + j) * b.column_stride;
          const int8_t v = inside ? int8_t(uint8_t(from[at]) ^ flip) : int8_t(0);
          to[i * kPanel + j * together + s] = v;
          sum[j] += uint32_t(int32_t(v));
        }
    for (int64_t j = 0; j < kPanel; ++j) sums[column + j] = int32_t(sum[j]);
  }
}

// to[i] = f(from[i * stride]), then `rest` up to the padded K. Contiguous rows have a loop of their own, which the
// compiler turns into vectors.
template <class To, class F>
HWY_INLINE void WidenRow(const int8_t *from, int64_t stride, int64_t k, To *HWY_RESTRICT to, To rest, const F &f) {
  if (stride == 1)
    for (int64_t i = 0; i < k; ++i) to[i] = f(from[i]);
  else
    for (int64_t i = 0; i < k; ++i) to[i] = f(from[i * stride]);
  for (int64_t i = k; i < Padded(k); ++i) to[i] = rest;
}

// Rows [m0, m1) of A[m, k] as DotPanels takes them; `ld` bytes apart in dst, the whole copy.
void WidenDot(const MatrixRef &a, bool is_unsigned, int64_t k, int64_t m0, int64_t m1, void *dst, int64_t ld) {
  const bool vnni = ::opgraft::simd::vnni();
  const uint8_t flip = is_unsigned ? 0 : 0x80;
  for (int64_t r = m0; r < m1; ++r) {
    const int8_t *from = static_cast<const int8_t *>(a.data) + r * a.row_stride;
    char *row = static_cast<char *>(dst) + r * ld;
    if (vnni)
      WidenRow(from, a.column_stride, k, reinterpret_cast<uint8_t *>(row), flip,
               [flip](int8_t v) HWY_ATTR { return uint8_t(uint8_t(v) ^ flip); });
    else if (is_unsigned)
      WidenRow(from, a.column_stride, k, reinterpret_cast<int16_t *>(row), int16_t(0),
               [](int8_t v) HWY_ATTR { return int16_t(uint8_t(v)); });
    else
      WidenRow(from, a.column_stride, k, reinterpret_cast<int16_t *>(row), int16_t(0),
               [](int8_t v) HWY_ATTR { return int16_t(v); });
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
