// Float32 GEMM over packed panels, per SIMD target. B is held as panels of PanelWidth() columns, each
// k-major and padded with zeros: one step of k reads two adjacent vectors of B and broadcasts one
// element of each row of A. product-inl.h has what goes round the tiles.
#include "aot_ops/common/gemm.h"

#if defined(OPGRAFT_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_GEMM_INL_H_
#undef OPGRAFT_GEMM_INL_H_
#else
#define OPGRAFT_GEMM_INL_H_
#endif

#include "aot_ops/common/turn-inl.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// 2 R accumulators + 2 of B + 1 of A fit the registers: 32 with AVX-512, else 16.
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
// Few rows wait for memory: a panel is then read as so many streams, each a part of k, as far as there are chains of
// sums. One stream of a core gives two thirds of it on Zen 3, and less where lines are fetched ahead; with AVX-512, and
// where a line takes more steps than two, one is enough.
#if HWY_TARGET <= HWY_AVX3
constexpr int kStreams = 1;
#else
constexpr int kStreams = 4;
#endif
using GemmVec = hn::Vec<hn::ScalableTag<float>>;
constexpr int64_t kPanel = 2 * int64_t(hn::MaxLanes(hn::ScalableTag<float>()));

inline int64_t PanelWidth() { return kPanel; }
inline int64_t TileRows() { return kTileRows; }

// What a panel holds of a weight of type T: the type itself where the machine widens it fast.
template <class T> struct PanelOf { using type = T; };
#if HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_AVX3
template <> struct PanelOf<::opgraft::float16> { using type = float; };
#endif
template <class T> using PanelType = typename PanelOf<T>::type;
// Where the machine multiplies pairs of bfloat16 a step of a panel is two rows of B: element (2 i, j) below (2 i + 1,
// j) in a word. A row of A then is one of such pairs, read like floats.
struct Bf16Pair {
  uint32_t both;
};
// run(a value of what a panel holds of T on this machine).
template <class T, class Run> HWY_INLINE void OfPanel(const Run &run) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, ::opgraft::bfloat16>) {
    if (::opgraft::simd::bf16_pairs()) return run(Bf16Pair());
  }
#endif
  run(PanelType<T>());
}
// sum + x b, of pairs with both products. These are exact; what is denormal counts as 0.
template <class B> HWY_INLINE GemmVec AddProducts(GemmVec x, GemmVec b, GemmVec sum) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<B, Bf16Pair>) {
    // As assembly, as in simd.h: a caller compiled without AVX512-BF16 could not inline the intrinsic.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(b.raw));
    return sum;
  }
#endif
  return hn::MulAdd(x, b, sum);
}

#if HWY_TARGET == HWY_AVX3
// lower's elements, then upper's, rounded to bfloat16; what is denormal becomes 0. As assembly, as AddProducts is, and
// only where that may be.
HWY_INLINE GemmVec RoundToPairs(GemmVec lower, GemmVec upper) {
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(lower.raw) : "v"(lower.raw), "v"(upper.raw));
  return lower;
}
#endif

// One step of k of a panel as float32: its lower and its upper half. Panels of bfloat16 hold column i and column
// i + kPanel / 2 in one 32-bit word, so that a shift and a mask widen them.
template <class D> HWY_INLINE void LoadStep(D d, const float *b, GemmVec &lo, GemmVec &hi) {
  lo = hn::LoadU(d, b);
  hi = hn::LoadU(d, b + kPanel / 2);
}
template <class D> HWY_INLINE void LoadStep(D d, const ::opgraft::bfloat16 *b, GemmVec &lo, GemmVec &hi) {
  const hn::RebindToUnsigned<D> du;
  const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t *>(b));
  lo = hn::BitCast(d, hn::ShiftLeft<16>(both));
  hi = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
}
template <class D> HWY_INLINE void LoadStep(D d, const ::opgraft::float16 *b, GemmVec &lo, GemmVec &hi) {
  lo = LoadF32(d, b);
  hi = LoadF32(d, b + kPanel / 2);
}
template <class D> HWY_INLINE void LoadStep(D d, const Bf16Pair *b, GemmVec &lo, GemmVec &hi) {
  LoadStep(d, reinterpret_cast<const float *>(b), lo, hi);
}
template <class D> HWY_INLINE void LoadStep(D d, const int8_t *b, GemmVec &lo, GemmVec &hi) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  lo = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, b)));
  hi = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, b + kPanel / 2)));
}

// R rows of A, `lda` bytes apart, read from the left to the right together. Three of them share a pointer: one for
// each, as the compiler would have it, is more than there are registers.
template <int R> class RowsTogether {
 public:
  HWY_INLINE RowsTogether(const void *a, int64_t lda) : row_(lda) {
#pragma GCC unroll 4
    for (int j = 0; j < kBases; ++j) base_[j] = static_cast<const char *>(a) + j * kTogether * lda;
  }
  HWY_INLINE const void *at(int r) const { return base_[r / kTogether] + r % kTogether * row_; }
  HWY_INLINE void advance(int64_t bytes) {
#pragma GCC unroll 4
    for (int j = 0; j < kBases; ++j) {
      base_[j] += bytes;
      asm("" : "+r"(base_[j]));  // it must not see that they are one pointer
    }
  }

 private:
  static constexpr int kTogether = 3, kBases = (R + kTogether - 1) / kTogether;
  const char *base_[kBases];
  int64_t row_;
};

// What a tile fetches meanwhile: `pace` bytes for every step of k.
struct Ahead {
  const char *from;
  int64_t pace;
};

// c[R, kPanel] = (add ? add : 0) + a[R, k] b[k, kPanel]; `b` is one panel. With few rows one chain of additions per
// accumulator is too short to hide the latency of FMA: k is split over kSplit chains, in kStreams parts. Where there
// is one part, what lies ahead is fetched into L2 meanwhile; but with AVX-512 one stream of whole lines is faster by
// itself (float32 0.92 of the time, bfloat16 0.8 to 0.95).
template <int R, int kSplit, class B> HWY_INLINE void MicroTile(const float *HWY_RESTRICT a, int64_t lda,
                                                                const B *HWY_RESTRICT b, int64_t k, const float *add,
                                                                int64_t ldadd, float *c, int64_t ldc, Ahead ahead) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2, kStep = kPanel * int64_t(sizeof(B)), kLine = 64;
  constexpr bool kFetch = kSplit == 1 || kStreams > 1 || kStep < kLine;
  constexpr int kParts = 2 * kStep < kLine ? 1 : kSplit < kStreams ? kSplit : kStreams, kChains = kSplit / kParts;
  GemmVec lo[R][kSplit], hi[R][kSplit], b0, b1;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int s = 0; s < kSplit; ++s) lo[r][s] = hi[r][s] = hn::Zero(d);
  }
  if constexpr (R > 6) {
    static_assert(kSplit == 1);
    RowsTogether<R> rows(a, lda * int64_t(sizeof(float)));  // with twelve rows 1.04 to 1.09 of the time (Zen 4)
    const char *next = ahead.from;
    for (int64_t i = 0; i < k; ++i, b += kPanel, next += ahead.pace) {
      LoadStep(d, b, b0, b1);
      __builtin_prefetch(next, 0, 2);
      if constexpr (kStep > kLine) __builtin_prefetch(next + kLine, 0, 2);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto x = hn::Set(d, *static_cast<const float *>(rows.at(r)));
        lo[r][0] = AddProducts<B>(x, b0, lo[r][0]);
        hi[r][0] = AddProducts<B>(x, b1, hi[r][0]);
      }
      rows.advance(sizeof(float));
    }
  } else {
    const int64_t part = k / kSplit * kChains;
#pragma GCC unroll 4
    for (int64_t i = 0; i < part; i += kChains) {
#pragma GCC unroll 4
      for (int s = 0; s < kSplit; ++s) {
        const int64_t at = i + s / kParts + s % kParts * part;
        LoadStep(d, b + at * kPanel, b0, b1);
        if constexpr (kParts == 1 && kFetch) {
          if (kStep >= kLine || s % (kLine / kStep) == 0) __builtin_prefetch(ahead.from + at * ahead.pace, 0, 2);
          if (kStep > kLine) __builtin_prefetch(ahead.from + at * ahead.pace + kLine, 0, 2);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const auto x = hn::Set(d, a[r * lda + at]);
          lo[r][s] = AddProducts<B>(x, b0, lo[r][s]);
          hi[r][s] = AddProducts<B>(x, b1, hi[r][s]);
        }
      }
    }
    for (int64_t i = part * kParts; i < k; ++i) {
      LoadStep(d, b + i * kPanel, b0, b1);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto x = hn::Set(d, a[r * lda + i]);
        lo[r][0] = AddProducts<B>(x, b0, lo[r][0]);
        hi[r][0] = AddProducts<B>(x, b1, hi[r][0]);
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
    if (add) {
      lo[r][0] = hn::Add(lo[r][0], hn::LoadU(d, add + r * ldadd));
      hi[r][0] = hn::Add(hi[r][0], hn::LoadU(d, add + r * ldadd + kLanes));
    }
    hn::StoreU(lo[r][0], d, c + r * ldc);
    hn::StoreU(hi[r][0], d, c + r * ldc + kLanes);
  }
}

template <class B> HWY_NOINLINE void MicroRowsOf(int64_t rows, const float *a, int64_t lda, const B *b, int64_t k,
                                                 const float *add, int64_t ldadd, float *c, int64_t ldc, Ahead ahead) {
#define OPGRAFT_TILE(R, kSplit) \
  case R: return MicroTile<R, kSplit>(a, lda, b, k, add, ldadd, c, ldc, ahead)
  switch (rows) {
    OPGRAFT_TILE(1, 4);
    OPGRAFT_TILE(2, 2);
    OPGRAFT_TILE(3, 2);
    OPGRAFT_TILE(4, 1);
    OPGRAFT_TILE(5, 1);
    OPGRAFT_TILE(6, 1);
#if HWY_TARGET <= HWY_AVX3
    OPGRAFT_TILE(7, 1);
    OPGRAFT_TILE(8, 1);
    OPGRAFT_TILE(9, 1);
    OPGRAFT_TILE(10, 1);
    OPGRAFT_TILE(11, 1);
    OPGRAFT_TILE(12, 1);
#endif
    default: return;
  }
#undef OPGRAFT_TILE
}
#ifdef OPGRAFT_PRODUCTS  // products.cc has it
#define OPGRAFT_MICRO_ROWS(B)                                                                                       \
  OPGRAFT_PRODUCTS template void MicroRowsOf<B>(int64_t, const float *, int64_t, const B *, int64_t, const float *, \
                                                int64_t, float *, int64_t, Ahead);
OPGRAFT_MICRO_ROWS(float)
OPGRAFT_MICRO_ROWS(::opgraft::float16)
OPGRAFT_MICRO_ROWS(::opgraft::bfloat16)
#if HWY_TARGET == HWY_AVX3
OPGRAFT_MICRO_ROWS(Bf16Pair)
#endif
#undef OPGRAFT_MICRO_ROWS
#endif

// Rows of the tile that begins at `row` when m rows are cut into the fewest, evenly filled tiles.
HWY_INLINE int64_t TileSize(int64_t m, int64_t row) {
  const int64_t left = m - row, tiles = (left + kTileRows - 1) / kTileRows;
  return (left + tiles - 1) / tiles;
}

// For the tiles of m rows that go through k steps of a panel one after another: the first streams this panel in, the
// others bring the next one, each its share, so that memory is read all the while.
template <class B>
HWY_INLINE Ahead AheadOf(const B *b, const B *next, int64_t k, int64_t m, int64_t row, int64_t rows) {
  constexpr int64_t kStep = kPanel * int64_t(sizeof(B)), kFar = 2048;
  if (row == 0) return {reinterpret_cast<const char *>(b) + kFar, kStep};
  const int64_t first = TileSize(m, 0), others = m - first;
  return {reinterpret_cast<const char *>(next) + (row - first) * k * kStep / others,
          (rows * kStep + others - 1) / others};
}

// The same of a float32 panel, added to c or written over it.
HWY_INLINE void MicroRows(int64_t rows, const float *a, int64_t lda, const float *b, int64_t k, float *c, int64_t ldc,
                          bool accumulate, Ahead ahead) {
  MicroRowsOf(rows, a, lda, b, k, accumulate ? c : nullptr, ldc, c, ldc, ahead);
}
HWY_INLINE void MicroRows(int64_t rows, const float *a, int64_t lda, const float *b, int64_t k, float *c, int64_t ldc,
                          bool accumulate) {
  MicroRows(rows, a, lda, b, k, c, ldc, accumulate, AheadOf(b, b, k, rows, 0, rows));
}

// dst[j + i * ld] = src[i * step + j * stride] for i < outer, j < inner: a row copy where stride is 1, turned where
// step is 1.
template <class T>
void Gather(const T *src, int64_t step, int64_t stride, int64_t outer, int64_t inner, float *dst, int64_t ld) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  if (stride != 1 && step == 1) return Turn<false>(src, stride, dst, ld, outer, inner, outer);
  for (int64_t i = 0; i < outer; ++i) {
    int64_t j = 0;
    for (; stride == 1 && j + lanes <= inner; j += lanes)
      hn::StoreU(LoadF32(d, src + i * step + j), d, dst + i * ld + j);
    for (; j < inner; ++j) dst[i * ld + j] = float(src[i * step + j * stride]);
  }
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

// to[i] = lower[i] | upper[i] << 16, or lower[i], for i < n, and whole vectors behind these.
template <bool kBoth>
HWY_INLINE void PairHalves(const uint16_t *lower, const uint16_t *upper, int64_t n, uint32_t *to) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d16;
  for (int64_t i = 0; i < n; i += kPanel / 2) {
    auto words = hn::PromoteTo(d32, hn::LoadU(d16, lower + i));
    if (kBoth) words = hn::Or(words, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, upper + i))));
    hn::StoreU(words, d32, to + i);
  }
}

// `rows` rows of A[m, k] of bfloat16 as words of two, `ld` words apart; what lies behind the last one is 0.
inline void PairRows(const MatrixRef &a, int64_t k, int64_t rows, float *dst, int64_t ld) {
  const auto *x = static_cast<const uint16_t *>(a.data);
  auto *y = reinterpret_cast<uint16_t *>(dst);
  const bool turned = a.column_stride != 1;
  if (turned) Turn<false>(x, a.column_stride, y, 2 * ld, rows, k, rows);
  const size_t behind = size_t(2 * ::opgraft::simd::pair_words(k) - k) * 2;
  for (int64_t i = 0; i < rows; ++i) {
    if (!turned) std::memcpy(y + i * 2 * ld, x + i * a.row_stride, size_t(k) * 2);
    std::memset(y + i * 2 * ld + k, 0, behind);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
