// Products over packed panels, per SIMD target: the loops round gemm-inl.h's tiles, what follows a product (scales,
// bias, activation, residual), and the packing. product-host.h has the threads.
#include "aot_ops/common/gemm.h"

#if defined(OPGRAFT_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_PRODUCT_INL_H_
#undef OPGRAFT_PRODUCT_INL_H_
#else
#define OPGRAFT_PRODUCT_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/amx-inl.h"
#include "aot_ops/common/gelu-inl.h"
#include "aot_ops/common/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class D> HWY_INLINE GemmVec Activate(D d, Activation a, GemmVec v) {
  switch (a) {
    case Activation::kGelu: return GeluErf(d, v);
    case Activation::kGeluTanh: return GeluTanh(d, v);
    case Activation::kRelu: return hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v);  // keeps NaN
    case Activation::kSilu: return Silu(d, v);
    default: return v;
  }
}

// Whether a tile's sums have the type and the place of C: a whole panel in float32, and nothing to scale.
template <class T> HWY_INLINE bool InTile(const GemmTile &g, int64_t width) {
  return std::is_same_v<T, float> && width == kPanel && !g.scale && !g.offset;
}
// The bias that a tile adds to its sums itself; null: there is none, or Epilogue adds it.
template <class T> HWY_INLINE const float *TileBias(const GemmTile &g, int64_t column, int64_t width) {
  return g.bias && InTile<T>(g, width) ? static_cast<const float *>(g.bias) + column : nullptr;
}
// Sums, and a bias at most: a tile writes C itself.
template <class T> HWY_INLINE bool Plain(const GemmTile &g, int64_t width) {
  return InTile<T>(g, width) && !g.residual && g.activation == Activation::kNone;
}

// c = the activation of acc for rows of whole panels: one alone, or behind a bias that the tiles have added.
template <Activation kActivation, class T>
HWY_INLINE void ActivateRows(const float *acc, int64_t ld, T *c, int64_t ldc, int64_t rows) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2;
  for (int64_t r = 0; r < rows; ++r, acc += ld, c += ldc) {
    StoreF32(Activate(d, kActivation, hn::LoadU(d, acc)), d, c);
    StoreF32(Activate(d, kActivation, hn::LoadU(d, acc + kLanes)), d, c + kLanes);
  }
}

// c = acc + residual, the same.
template <class T>
HWY_INLINE void AddRows(const float *acc, int64_t ld, const T *residual, T *c, int64_t ldc, int64_t rows) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2;
  for (int64_t r = 0; r < rows; ++r, acc += ld, residual += ldc, c += ldc) {
    StoreF32(hn::Add(hn::LoadU(d, acc), LoadF32(d, residual)), d, c);
    StoreF32(hn::Add(hn::LoadU(d, acc + kLanes), LoadF32(d, residual + kLanes)), d, c + kLanes);
  }
}

// So few columns that the same columns of several rows make a vector.
constexpr int64_t kNarrow = kPanel / 8;
// What follows a product of kNarrow columns or fewer, as Epilogue has it: rows of C and of the residual,
// kMostBlockRows at most, lie one after another.
template <class T>
HWY_NOINLINE void NarrowEpilogue(const GemmTile &g, const float *acc, int64_t ld, int64_t row, int64_t rows) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2;
  HWY_ALIGN float sums[kMostBlockRows * kNarrow];
  const T *bias = static_cast<const T *>(g.bias);
  for (int64_t j = 0; j < g.n; ++j) {
    const float more = bias ? float(bias[j]) : 0.0f;
    for (int64_t r = 0; r < rows; ++r) sums[r * g.n + j] = bias ? acc[r * ld + j] + more : acc[r * ld + j];
  }
  std::fill_n(sums + rows * g.n, -(rows * g.n) & (kLanes - 1), 0.0f);
  T *c = static_cast<T *>(g.c) + row * g.n;
  const T *residual = g.residual ? static_cast<const T *>(g.residual) + row * g.n : nullptr;
  for (int64_t i = 0; i < rows * g.n; i += kLanes) {
    const size_t n = size_t(std::min(rows * g.n - i, kLanes));
    const bool whole = n == size_t(kLanes);
    auto v = Activate(d, g.activation, hn::Load(d, sums + i));
    if (residual) v = hn::Add(v, whole ? LoadF32(d, residual + i) : LoadF32N(d, residual + i, n));
    if (whole) StoreF32(v, d, c + i);
    else StoreF32N(v, d, c + i, n);
  }
}

// What follows the product of rows [row, row + rows) and columns [column, column + width), whose sums lie in `acc`,
// `ld` apart; written to C as T. `biased`: the sums have their bias.
template <class T> HWY_NOINLINE void Epilogue(const GemmTile &g, const float *acc, int64_t ld, int64_t row,
                                              int64_t rows, int64_t column, int64_t width, bool biased = false) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2;
  const T *bias = biased ? nullptr : static_cast<const T *>(g.bias);
  if (g.n <= kNarrow && g.ldc == g.n && rows > 1 && !g.scale && !g.offset)
    return NarrowEpilogue<T>(g, acc, ld, row, rows);
  if (width == kPanel && !bias && !g.scale && !g.offset) {
    const int64_t at = row * g.ldc + column;
    T *c = static_cast<T *>(g.c) + at;
    if (g.residual && g.activation == Activation::kNone)
      return AddRows(acc, ld, static_cast<const T *>(g.residual) + at, c, g.ldc, rows);
    switch (g.residual ? Activation::kNone : g.activation) {
      case Activation::kGelu: return ActivateRows<Activation::kGelu>(acc, ld, c, g.ldc, rows);
      case Activation::kGeluTanh: return ActivateRows<Activation::kGeluTanh>(acc, ld, c, g.ldc, rows);
      case Activation::kSilu: return ActivateRows<Activation::kSilu>(acc, ld, c, g.ldc, rows);
      default: break;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * g.ldc + column;
    T *c = static_cast<T *>(g.c) + at;
    const T *residual = g.residual ? static_cast<const T *>(g.residual) + at : nullptr;
    for (int64_t j = 0; j < width; j += kLanes) {
      const size_t n = size_t(width - j < kLanes ? width - j : kLanes);
      const bool whole = n == size_t(kLanes);
      const auto load = [&](const auto *p) HWY_ATTR { return whole ? LoadF32(d, p) : LoadF32N(d, p, n); };
      auto v = whole ? hn::LoadU(d, acc + r * ld + j) : LoadF32N(d, acc + r * ld + j, n);
      if (g.offset) v = hn::MulAdd(hn::Set(d, g.row_sums[row + r]), load(g.offset + column + j), v);
      if (g.scale) v = hn::Mul(v, load(g.scale + column + j));
      if (bias) v = hn::Add(v, load(bias + column + j));
      v = Activate(d, g.activation, v);
      if (residual) v = hn::Add(v, load(residual + j));
      if (whole) StoreF32(v, d, c + j);
      else StoreF32N(v, d, c + j, n);
    }
  }
}

// Epilogue of sums that rows of B's type made, kPanel apart. Sums of pairs, in which a denormal number counts as 0, are
// rounded by the machine where nothing but a bias follows.
template <class T, class B> HWY_INLINE void Follow(const GemmTile &g, const float *acc, int64_t row, int64_t rows,
                                                   int64_t column, int64_t width, bool biased) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<B, Bf16Pair> && std::is_same_v<T, ::opgraft::bfloat16>) {
    if (width == kPanel && g.activation == Activation::kNone && !g.residual && !g.scale && !g.offset) {
      const hn::ScalableTag<float> d;
      const T *bias = static_cast<const T *>(g.bias);
      const auto lower = bias ? LoadF32(d, bias + column) : hn::Zero(d);
      const auto upper = bias ? LoadF32(d, bias + column + kPanel / 2) : hn::Zero(d);
      T *c = static_cast<T *>(g.c) + row * g.ldc + column;
      for (int64_t r = 0; r < rows; ++r, acc += kPanel, c += g.ldc)
        hn::StoreU(RoundToPairs(hn::Add(hn::LoadU(d, acc), lower), hn::Add(hn::LoadU(d, acc + kPanel / 2), upper)), d,
                   reinterpret_cast<float *>(c));
      return;
    }
  }
#endif
  Epilogue<T>(g, acc, kPanel, row, rows, column, width, biased);
}

// The lines of C that rows [row, row + rows) of a panel go to: they come while the sums are made.
template <class T> HWY_INLINE void FetchC(const GemmTile &g, int64_t row, int64_t rows, int64_t column, int64_t width) {
  for (int64_t r = row; r < row + rows; ++r) {
    const T *c = static_cast<const T *>(g.c) + r * g.ldc + column;
    for (int64_t i = 0; i < width; i += int64_t(64 / sizeof(T))) __builtin_prefetch(c + i, 1);
  }
}

// Rows [m0, m1) of panels [p0, p1), K in one piece; kMostBlockRows at most, here and below. What follows the sums is
// done for all rows of a panel at once: after every tile it would stop the next one.
template <class T, class B>
HWY_INLINE void PanelsWhole(const GemmTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  HWY_ALIGN float acc[kMostBlockRows * kPanel];
  for (int64_t panel = p0; panel < p1; ++panel) {
    const int64_t column = panel * kPanel, width = g.n - column < kPanel ? g.n - column : kPanel;
    const B *b = static_cast<const B *>(g.b) + column * g.k;
    const float *bias = TileBias<T>(g, column, width);
    const bool plain = Plain<T>(g, width);
    for (int64_t row = m0; row < m1;) {
      const int64_t rows = TileSize(m1, row);
      const Ahead ahead = AheadOf(b, b + g.k * kPanel, g.k, m1 - m0, row - m0, rows);
      FetchC<T>(g, row, rows, column, width);
      float *sums = plain ? static_cast<float *>(g.c) + row * g.ldc + column : acc + (row - m0) * kPanel;
      MicroRowsOf(rows, g.a + row * g.lda, g.lda, b, g.k, bias, 0, sums, plain ? g.ldc : kPanel, ahead);
      row += rows;
    }
    if (!plain) Follow<T, B>(g, acc, m0, m1 - m0, column, width, bias);
  }
}

// K in pieces of g.kc, so that the rows of A and a panel's piece stay in L2 while they are used; the sums of the
// panels stay in `acc`.
template <class T, class B>
HWY_NOINLINE void PanelsInPieces(const GemmTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  HWY_ALIGN float acc[kBlockPanels * kMostBlockRows * kPanel];
  for (int64_t k0 = 0; k0 < g.k; k0 += g.kc) {
    const int64_t k = g.k - k0 < g.kc ? g.k - k0 : g.kc;
    const bool first = k0 == 0, last = k0 + k == g.k;
    for (int64_t panel = p0; panel < p1; ++panel) {
      const int64_t column = panel * kPanel, width = g.n - column < kPanel ? g.n - column : kPanel;
      const B *b = static_cast<const B *>(g.b) + column * g.k + k0 * kPanel;
      // Behind the last panel comes the first one's next piece, or the first piece of what lies behind it.
      const B *next = panel + 1 < p1 ? b + g.k * kPanel
                      : last         ? b + k * kPanel
                                     : b - (panel - p0) * g.k * kPanel + k * kPanel;
      const float *bias = TileBias<T>(g, column, width);
      const bool direct = last && Plain<T>(g, width);
      for (int64_t row = m0; row < m1;) {
        const int64_t rows = TileSize(m1, row);
        const float *a = g.a + row * g.lda + k0;
        float *sums = acc + ((panel - p0) * (m1 - m0) + row - m0) * kPanel;
        const Ahead ahead = AheadOf(b, next, k, m1 - m0, row - m0, rows);
        if (last) FetchC<T>(g, row, rows, column, width);
        MicroRowsOf(rows, a, g.lda, b, k, first ? bias : sums, first ? 0 : kPanel,
                    direct ? static_cast<float *>(g.c) + row * g.ldc + column : sums, direct ? g.ldc : kPanel, ahead);
        row += rows;
      }
      if (last && !direct) Follow<T, B>(g, acc + (panel - p0) * (m1 - m0) * kPanel, m0, m1 - m0, column, width, bias);
    }
  }
}

#if HWY_TARGET == HWY_AVX3
// Both by AMX's tiles, of whose sums none is C's as it is.
template <class T> HWY_NOINLINE void PanelsByTiles(const GemmTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  struct Place {
    int64_t row, column, width;
  };
  const auto follow = [&](const Place &at, int64_t row, int64_t rows, const float *sums)
                          HWY_ATTR { Follow<T, Bf16Pair>(g, sums, at.row + row, rows, at.column, at.width, false); };
  AmxFollowed<float, Place, decltype(follow)> tiles(follow);
  HWY_ALIGN float acc[kBlockPanels * kMostBlockRows * kPanel];  // of all pieces but the last one
  int64_t k0 = 0, k;
  do {
    k = std::min(g.k - k0, g.kc);
    for (int64_t panel = p0; panel < p1; ++panel) {
      const int64_t column = panel * kPanel, width = g.n - column < kPanel ? g.n - column : kPanel;
      const AmxRows b{static_cast<const Bf16Pair *>(g.b) + column * g.k + k0 * kPanel, kPanelRow};
      for (int64_t row = m0, rows; row < m1; row += rows) {
        rows = std::min(m1 - row, ::opgraft::simd::kAmxRows);
        const AmxRows a{g.a + row * g.lda + k0, g.lda * 4};
        float *sums = acc + ((panel - p0) * (m1 - m0) + row - m0) * kPanel;
        const AmxRows before{k0 ? sums : nullptr, kPanelRow};
        if (k0 + k < g.k) {
          tiles.Add(rows, a, b, k, before, {sums, kPanelRow});
          continue;
        }
        FetchC<T>(g, row, rows, column, width);
        tiles.Multiply(rows, a, b, k, before, {row, column, width});
      }
    }
    k0 += k;
  } while (k0 < g.k);
  tiles.Finish();
}
#endif

template <class T, class B>
HWY_INLINE void PanelsOf(const GemmTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<B, Bf16Pair>) {
    if (::opgraft::simd::by_amx(m1 - m0)) return PanelsByTiles<T>(g, p0, p1, m0, m1);
  }
#endif
  if (g.kc >= g.k) PanelsWhole<T, B>(g, p0, p1, m0, m1);
  else PanelsInPieces<T, B>(g, p0, p1, m0, m1);
}
template <class T> void GemmPanels(const GemmTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  OfPanel<T>([&](auto panel) HWY_ATTR { PanelsOf<T, decltype(panel)>(g, p0, p1, m0, m1); });
}

// Bytes of an element of T in a panel, or of a pair of them.
template <class T> int64_t PanelElement() {
  int64_t bytes = 0;
  OfPanel<T>([&](auto panel) { bytes = sizeof panel; });
  return bytes;
}

// The columns of panels [p0, p1) at rows [k0, k1) of B[k, n] (row_stride between k, column_stride between n) into
// dst, the whole packed B. One element of T becomes one of the panel's, unchanged.
template <class T, class P>
void PackInto(const MatrixRef &b, int64_t k, int64_t n, int64_t p0, int64_t p1, int64_t k0, int64_t k1, P *dst) {
  // Words that hold a step's columns i and i + kPanel / 2 (bfloat16), else one column after another.
  constexpr bool kPairs = std::is_same_v<P, ::opgraft::bfloat16>;
  constexpr int64_t kRows = 16;
  P block[kRows][kPanel];
  for (int64_t from = k0; from < k1; from += kRows) {
    const int64_t rows = k1 - from < kRows ? k1 - from : kRows;
    for (int64_t p = p0; p < p1; ++p) {
      const int64_t column = p * kPanel, width = n - column < kPanel ? n - column : kPanel;
      const T *src = static_cast<const T *>(b.data) + from * b.row_stride + column * b.column_stride;
      P *to = dst + column * k + from * kPanel;
      const bool through = kPairs || width < kPanel;
      P *at = through ? block[0] : to;
      if (width < kPanel) std::memset(static_cast<void *>(block), 0, sizeof block);
      if (b.column_stride == 1) {
        if constexpr (std::is_same_v<T, P>) {
          for (int64_t i = 0; i < rows; ++i) {
            // A row's panels are read in order, as the hardware foresees; the next rows are far away.
            __builtin_prefetch(src + (i + kRows) * b.row_stride);
            std::memcpy(static_cast<void *>(at + i * kPanel), src + i * b.row_stride,
                        size_t(width == kPanel ? kPanel : width) * sizeof(T));
          }
        } else {
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < width; ++j) at[i * kPanel + j] = P(float(src[i * b.row_stride + j]));
        }
      } else if constexpr (std::is_same_v<T, float>) {
        Gather(src, b.row_stride, b.column_stride, rows, width, at, kPanel);
      } else {
        for (int64_t j = 0; j < width; ++j)
          for (int64_t i = 0; i < rows; ++i) {
            if constexpr (std::is_same_v<T, P>) at[i * kPanel + j] = src[i * b.row_stride + j * b.column_stride];
            else at[i * kPanel + j] = P(float(src[i * b.row_stride + j * b.column_stride]));
          }
      }
      if constexpr (kPairs) {
        constexpr int64_t kHalf = kPanel / 2;
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < kHalf; ++j) {
            to[i * kPanel + 2 * j] = block[i][j];
            to[i * kPanel + 2 * j + 1] = block[i][j + kHalf];
          }
      } else if (through) {
        std::memcpy(static_cast<void *>(to), block, size_t(rows * kPanel) * sizeof(P));
      }
    }
  }
}
// The bits of a bfloat16; of a byte, which it holds exactly.
inline uint16_t Bits16(uint16_t bits) { return bits; }
inline uint16_t Bits16(int8_t v) { return uint16_t(std::bit_cast<uint32_t>(float(v)) >> 16); }

// `rows` rows of a panel in pairs where these are vectors of two rows, or words that lie down the columns; else false.
inline bool PackWords(const MatrixRef &b, const uint16_t *src, int64_t rows, int64_t width, uint32_t *to) {
  if (b.column_stride == 1 && width == kPanel) {
    for (int64_t i = 0; i < rows; i += 2, src += 2 * b.row_stride, to += kPanel) {
      __builtin_prefetch(src + 16 * b.row_stride);  // rows are far from one another
      __builtin_prefetch(src + 17 * b.row_stride);
      if (i + 1 < rows) PairHalves<true>(src, src + b.row_stride, kPanel, to);
      else PairHalves<false>(src, nullptr, kPanel, to);
    }
    return true;
  }
  if (b.row_stride != 1 || b.column_stride % 2 || rows % 2 || reinterpret_cast<uintptr_t>(src) % 4) return false;
  if (width < kPanel) std::fill_n(to, rows / 2 * kPanel, 0u);
  Turn<false>(reinterpret_cast<const uint32_t *>(src), b.column_stride / 2, to, kPanel, rows / 2, width, rows / 2);
  return true;
}

// The same in pairs of rows, of bfloat16 (as uint16_t) or of bytes; k0 is even, and what lies behind k is 0.
template <class T> void PackPairs(const MatrixRef &b, int64_t k, int64_t n, int64_t p0, int64_t p1, int64_t k0,
                                  int64_t k1, Bf16Pair *dst) {
  constexpr int64_t kRows = 16;
  uint16_t block[kRows][kPanel];
  const auto *data = static_cast<const T *>(b.data);
  const int64_t steps = ::opgraft::simd::pair_words(k);
  for (int64_t from = k0; from < k1; from += kRows) {
    const int64_t rows = std::min(kRows, k1 - from);
    for (int64_t p = p0; p < p1; ++p) {
      const int64_t column = p * kPanel, width = std::min(n - column, kPanel);
      const T *src = data + from * b.row_stride + column * b.column_stride;
      Bf16Pair *to = dst + column * steps + from / 2 * kPanel;
      if constexpr (sizeof(T) == 2) {
        if (PackWords(b, src, rows, width, &to->both)) continue;
      }
      if (width < kPanel || rows < kRows) std::memset(block, 0, sizeof block);
      if (b.column_stride == 1) {
        for (int64_t i = 0; i < rows; ++i) {
          __builtin_prefetch(src + (i + kRows) * b.row_stride);
          if constexpr (sizeof(T) == 2) std::memcpy(block[i], src + i * b.row_stride, size_t(width) * 2);
          else
            for (int64_t j = 0; j < width; ++j) block[i][j] = Bits16(src[i * b.row_stride + j]);
        }
      } else {
        for (int64_t j = 0; j < width; ++j)
          for (int64_t i = 0; i < rows; ++i) block[i][j] = Bits16(src[i * b.row_stride + j * b.column_stride]);
      }
      for (int64_t i = 0; i < rows; i += 2)
        for (int64_t j = 0; j < kPanel; ++j)
          to[i / 2 * kPanel + j].both = block[i][j] | uint32_t(block[i + 1][j]) << 16;
    }
  }
  for (int64_t p = p0; k1 == k && p < p1; ++p)
    std::fill_n(dst + (p * steps + (k + 1) / 2) * kPanel, (steps - (k + 1) / 2) * kPanel, Bf16Pair{});
}
template <class T>
void PackPanels(const MatrixRef &b, int64_t k, int64_t n, int64_t p0, int64_t p1, int64_t k0, int64_t k1, void *dst) {
  OfPanel<T>([&](auto panel) HWY_ATTR {
    using P = decltype(panel);
    if constexpr (std::is_same_v<P, Bf16Pair>) PackPairs<uint16_t>(b, k, n, p0, p1, k0, k1, static_cast<P *>(dst));
    else PackInto<T>(b, k, n, p0, p1, k0, k1, static_cast<P *>(dst));
  });
}
}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
