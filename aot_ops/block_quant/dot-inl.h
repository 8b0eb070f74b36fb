// Products of eight-bit activations with blocks of weights, per SIMD target. A panel is as many rows of the weight as
// a vector has 32-bit lanes: of each block its scales, its least values, its codes, four of a row side by side in a
// lane, so that one instruction multiplies a lane's four by four of x and adds them up.
#include "aot_ops/block_quant/block_quant.h"

#if defined(OPGRAFT_BLOCK_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_BLOCK_DOT_INL_H_
#undef OPGRAFT_BLOCK_DOT_INL_H_
#else
#define OPGRAFT_BLOCK_DOT_INL_H_
#endif

#include "aot_ops/common/quantise-inl.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

using I32 = hn::ScalableTag<int32_t>;
using U8 = hn::Repartition<uint8_t, I32>;
using I8 = hn::Repartition<int8_t, I32>;

// Weights of a panel, rows of x of a tile.
HWY_INLINE int64_t BlockPanel() { return int64_t(hn::Lanes(I32())); }
constexpr int kBlockTile = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
HWY_INLINE int64_t PanelBlockBytes(const BlockFormat &f) { return BlockPanel() * f.bytes(); }

// `acc` plus four products in every lane, or eight-bit codes' pairs where there is no VNNI: see Finish.
template <bool kVnni, int kBits> HWY_INLINE auto Multiply(hn::Vec<U8> w, hn::Vec<I8> x, hn::Vec<I32> acc) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) {
    asm("vpdpbusd %2, %1, %0" : "+v"(acc.raw) : "v"(w.raw), "v"(x.raw));
    return acc;
  }
#endif
  const I32 d;
  const hn::Repartition<int16_t, I32> d16;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  // pmaddubsw: two products of a code of 4 bits are at most 3810, so that eight vectors of them fit 16 bits; of 8 bits
  // the code's size by x with the code's sign.
  const auto pairs = [](auto a, auto b) HWY_ATTR {
    hn::Vec<hn::Repartition<int16_t, I32>> p;
#if HWY_TARGET == HWY_AVX3
    p.raw = _mm512_maddubs_epi16(a.raw, b.raw);
#elif HWY_TARGET == HWY_AVX2
    p.raw = _mm256_maddubs_epi16(a.raw, b.raw);
#else
    p.raw = _mm_maddubs_epi16(a.raw, b.raw);
#endif
    return p;
  };
  if constexpr (kBits == 4) {
    return hn::BitCast(d, hn::Add(hn::BitCast(d16, acc), pairs(w, x)));
  } else {
    const I8 d8;
    const auto signed_code = hn::BitCast(d8, hn::Xor(w, hn::Set(U8(), uint8_t(0x80))));
    const auto negative = hn::Lt(signed_code, hn::Zero(d8));
    const auto turned = hn::IfThenElse(negative, hn::Neg(x), x);
    const auto size = hn::BitCast(U8(), hn::Abs(signed_code));
    auto none = hn::Zero(d);
    return hn::ReorderWidenMulAccumulate(d, pairs(size, turned), hn::Set(d16, int16_t(1)), acc, none);
  }
#else
  static_assert(!kVnni && HWY_TARGET == 0, "a SIMD target that is not known here");
#endif
}

// The lanes' sums of codes times x, of which `offset` times x's own sum is still to be taken.
template <bool kVnni, int kBits> HWY_INLINE hn::Vec<I32> Finish(hn::Vec<I32> acc, int32_t offset_sum) {
  const I32 d;
  if constexpr (!kVnni && kBits == 8) return acc;  // the codes had their sign
  if constexpr (!kVnni) {
    const hn::Repartition<int16_t, I32> d16;
    auto none = hn::Zero(d);
    acc = hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, acc), hn::Set(d16, int16_t(1)), hn::Zero(d), none);
  }
  return hn::Sub(acc, hn::Set(d, offset_sum));
}

// y[R, panel] of R rows of x from row m on and one panel.
template <int R, bool kVnni, int kBits, bool kLeast, class T>
HWY_INLINE void BlockTileOf(const BlockTile &g, const uint8_t *panel, int64_t column, int64_t m) {
  const I32 d;
  const hn::ScalableTag<float> df;
  const U8 d8;
  const int64_t lanes = BlockPanel(), blocks = g.k / kBlock;
  hn::Vec<hn::ScalableTag<float>> y[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) y[r] = hn::Zero(df);
  for (int64_t b = 0; b < blocks; ++b) {
    const auto *half = reinterpret_cast<const ::opgraft::float16 *>(panel);
    const auto scale = LoadF32(df, half);
    const uint8_t *codes = panel + (kLeast ? 4 : 2) * lanes;
    __builtin_prefetch(panel + 4096);
    __builtin_prefetch(panel + 4096 + 64);
    __builtin_prefetch(panel + 4096 + 128);
    hn::Vec<I32> acc[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r] = hn::Zero(d);
    const auto four = [&](hn::Vec<U8> w, int64_t i) HWY_ATTR {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t x;
        std::memcpy(&x, g.x.codes + (m + r) * g.k + b * kBlock + i, 4);
        acc[r] = Multiply<kVnni, kBits>(w, hn::BitCast(I8(), hn::Set(d, x)), acc[r]);
      }
    };
    if constexpr (kBits == 4) {
      const auto low = hn::Set(d8, uint8_t(15));
      const hn::Repartition<uint16_t, I32> d16;
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const auto two = hn::LoadU(d8, codes + q * 4 * lanes);
        four(hn::And(two, low), 8 * q);
        four(hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, two))), low), 8 * q + 4);
      }
    } else {
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) four(hn::LoadU(d8, codes + q * 4 * lanes), 4 * q);
    }
    const int32_t offset = g.format->offset;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t at = (m + r) * blocks + b;
      const auto sum = hn::ConvertTo(df, Finish<kVnni, kBits>(acc[r], offset * g.x.sum[at]));
      y[r] = hn::MulAdd(hn::Mul(sum, hn::Set(df, g.x.scale[at])), scale, y[r]);
      if constexpr (kLeast)
        y[r] = hn::MulAdd(hn::Set(df, g.x.scale[at] * float(g.x.sum[at])), LoadF32(df, half + lanes), y[r]);
    }
    panel += PanelBlockBytes(*g.format);
  }
  const size_t width = size_t(g.n - column < lanes ? g.n - column : lanes);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    T *to = static_cast<T *>(g.y) + (m + r) * g.n + column;
    if (width == size_t(lanes)) StoreF32(y[r], df, to);
    else StoreF32N(y[r], df, to, width);
  }
}

template <bool kVnni, int kBits, bool kLeast, class T>
HWY_NOINLINE void BlockRows(const BlockTile &g, const uint8_t *panel, int64_t column, int64_t m0, int64_t m1) {
  int64_t m = m0;
  for (; m + kBlockTile <= m1; m += kBlockTile) BlockTileOf<kBlockTile, kVnni, kBits, kLeast, T>(g, panel, column, m);
  for (; m + 2 <= m1; m += 2) BlockTileOf<2, kVnni, kBits, kLeast, T>(g, panel, column, m);
  if (m < m1) BlockTileOf<1, kVnni, kBits, kLeast, T>(g, panel, column, m);
}

template <bool kVnni, class T>
HWY_INLINE void BlockFormats(const BlockTile &g, const uint8_t *panel, int64_t column, int64_t m0, int64_t m1) {
  if (g.format->bits == 8) BlockRows<kVnni, 8, false, T>(g, panel, column, m0, m1);
  else if (g.format->has_least) BlockRows<kVnni, 4, true, T>(g, panel, column, m0, m1);
  else BlockRows<kVnni, 4, false, T>(g, panel, column, m0, m1);
}

// Columns of one panel, rows [m0, m1) of x.
template <class T> void BlockDot(const BlockTile &g, const uint8_t *panel, int64_t column, int64_t m0, int64_t m1) {
#if HWY_TARGET == HWY_AVX3
  if (::opgraft::simd::vnni()) return BlockFormats<true, T>(g, panel, column, m0, m1);
#endif
  BlockFormats<false, T>(g, panel, column, m0, m1);
}

// Rows [column, column + panel) of a weight as a panel; zeros where there are none. Codes as BlockFormat::code has
// them.
void PackBlocks(const BlockFormat &f, const uint8_t *weight, int64_t k, int64_t n, int64_t column, uint8_t *to) {
  const int64_t lanes = BlockPanel(), blocks = k / kBlock, row = blocks * f.bytes(), head = f.has_least ? 4 : 2;
  for (int64_t b = 0; b < blocks; ++b, to += lanes * f.bytes()) {
    std::memset(to, 0, size_t(lanes * f.bytes()));
    for (int64_t r = 0; r < lanes && column + r < n; ++r) {
      const uint8_t *block = weight + (column + r) * row + b * f.bytes();
      std::memcpy(to + 2 * r, block, 2);
      if (f.has_least) std::memcpy(to + 2 * (lanes + r), block + 2, 2);
      uint8_t *codes = to + head * lanes + 4 * r;
      const uint8_t *stored = block + head;
      const auto four = [&](int64_t i) {
        uint32_t v;
        std::memcpy(&v, stored + i, 4);
        return v;
      };
      const auto put = [&](int64_t q, uint32_t v) { std::memcpy(codes + q * 4 * lanes, &v, 4); };
      if (f.bits == 8) {
        for (int64_t q = 0; q < 8; ++q) put(q, four(4 * q) ^ 0x80808080u);
        continue;
      }
      constexpr uint32_t kLow = 0x0f0f0f0fu;  // of two times four codes the first lie in the low halves
      for (int64_t q = 0; q < 2; ++q) {
        const uint32_t a = four(8 * q), b = four(8 * q + 4);
        put(q, (a & kLow) | (b & kLow) << 4);
        put(q + 2, (a >> 4 & kLow) | (b & ~kLow));
      }
    }
  }
}

// Row m of x in codes of eight bits: of each block the largest size is 127 steps. A block with a NaN or an infinity
// has a scale of NaN.
template <class T> void QuantiseRow(const void *x, int64_t k, int64_t m, const QuantRows &to) {
  const int64_t blocks = k / kBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const T *from = static_cast<const T *>(x) + m * k + b * kBlock;
    const QuantisedRun run = QuantiseRun<T>(from, nullptr, kBlock, to.codes + m * k + b * kBlock);
    to.scale[m * blocks + b] = run.scale;
    to.sum[m * blocks + b] = run.sum;
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
