// Per SIMD target: a tile of a convolution in registers. Weights lie by panels of kPanel output channels, one row of a
// panel after the other for every step of the sum; so they serve as vectors and, one by one, as factors of vectors of
// pixels alike.
#include "conv.h"

#if defined(OPGRAFT_CONV_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_TILE_INL_H_
#undef OPGRAFT_CONV_TILE_INL_H_
#else
#define OPGRAFT_CONV_TILE_INL_H_
#endif

#include "hwy/cache_control.h"
#include "words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

struct ConvTile {
  const float *w, *x;  // x: of the first pixel
  int64_t steps, taps, stride;
  const int64_t *offsets;           // of the taps
  const uint16_t *masks = nullptr;  // kMasked: for every tap which lanes of up to four vectors of pixels lie in x
  // y: where the results go, output channels `ld` apart, of float32, or of bfloat16 where words are of two channels and
  // pixels in lanes; null: the rows go to sums as they are, kWidest apart.
  void *y;
  float *sums;
  int64_t ld;
  const float *scale, *shift;
  const void *residual;  // of y; pixels in lanes alone
  ConvBounds bounds;
  // Of a sum without taps: steps whose pixels, `ahead` floats behind its own, this tile fetches for a later one.
  int64_t ahead_begin = 0, ahead_end = 0, ahead = 0;
  // Of pixels that lie on both sides of the padding between two lines: which lanes of each vector are pixels, and where
  // the first of them goes. What is stored behind the last is written over by the tiles that follow.
  bool gaps = false, past = false;  // past: y begins at whole vectors and goes past the caches
  uint64_t lanes[4] = {};
  int64_t places[4] = {};
};
constexpr int64_t kWidest = 4 * kLanes;
// Tiles of few rows read so many vectors of pixels that it pays where these begin cache lines, and where each tile
// fetches its share of later ones. With AVX-512's twelve rows both cost more than they bring (N = 32, 64x56x56: 1.25 of
// the time): there every step fetches what lies kAhead floats behind its pixels.
constexpr bool kByLines = kTileRows < 8;
constexpr int64_t kAhead = 64;
// Whether vectors of pixels may be read with masks for what lies outside of x: nothing is read there.
constexpr bool kMaskedTiles = HWY_TARGET == HWY_AVX3;
inline bool MaskedTiles() { return kMaskedTiles; }

// Stores the 128-bit blocks of v, 4 * ld apart.
template <class D> HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, float *to, int64_t ld) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    StoreBlocks(half, hn::LowerHalf(half, v), to, ld);
    StoreBlocks(half, hn::UpperHalf(half, v), to + int64_t(hn::MaxLanes(half)) * ld, ld);
  } else {
    hn::StoreU(v, d, to);
  }
}

// Four vectors as columns: to[i * ld + r] = element i of rows[r].
template <int V> HWY_INLINE void StoreTurned(const GemmVec (*rows)[V], int v, float *to, int64_t ld) {
  const hn::ScalableTag<float> d;
  const auto p0 = hn::InterleaveLower(d, rows[0][v], rows[2][v]), p1 = hn::InterleaveLower(d, rows[1][v], rows[3][v]);
  const auto p2 = hn::InterleaveUpper(d, rows[0][v], rows[2][v]), p3 = hn::InterleaveUpper(d, rows[1][v], rows[3][v]);
  StoreBlocks(d, hn::InterleaveLower(d, p0, p1), to, ld);
  StoreBlocks(d, hn::InterleaveUpper(d, p0, p1), to + ld, ld);
  StoreBlocks(d, hn::InterleaveLower(d, p2, p3), to + 2 * ld, ld);
  StoreBlocks(d, hn::InterleaveUpper(d, p2, p3), to + 3 * ld, ld);
}

// R output channels' V vectors of pixels.
template <int R, int V> HWY_INLINE void StorePixels(const ConvTile &t, GemmVec (&acc)[R][V], float *y) {
  const hn::ScalableTag<float> d;
  if (t.gaps) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        hn::StoreU(hn::CompressBits(acc[r][v], reinterpret_cast<const uint8_t *>(t.lanes + v)), d,
                   y + r * t.ld + t.places[v]);
    }
    return;
  }
  if (t.past) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) hn::Stream(acc[r][v], d, y + r * t.ld + v * kLanes);
    }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], d, y + r * t.ld + v * kLanes);
  }
}

// R pixels' V vectors of output channels.
template <int R, int V> HWY_INLINE void StoreColumns(const ConvTile &t, GemmVec (&acc)[R][V], float *y) {
  const hn::ScalableTag<float> d;
  constexpr int kTurned = R / 4 * 4;
#pragma GCC unroll 4
  for (int r = 0; r < kTurned; r += 4) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) StoreTurned<V>(acc + r, v, y + r + v * kLanes * t.ld, t.ld);
  }
  if constexpr (kTurned < R) {
#pragma GCC unroll 4
    for (int r = kTurned; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], d, t.sums + r * kWidest + v * kLanes);
    }
    for (int64_t i = 0; i < V * kLanes; ++i) {
#pragma GCC unroll 4
      for (int r = kTurned; r < R; ++r) y[i * t.ld + r] = t.sums[r * kWidest + i];
    }
  }
}

#if HWY_TARGET == HWY_AVX3
// R output channels' V vectors of pixels in bfloat16, rounded as PutPanel does.
template <int R, int V> HWY_INLINE void StoreWords(const ConvTile &t, GemmVec (&acc)[R][V], ::opgraft::bfloat16 *y) {
  const hn::ScalableTag<float> d;
  const hn::Half<decltype(d)> half;
  const auto at = [&](int64_t place) HWY_ATTR { return reinterpret_cast<float *>(y + place); };
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (t.gaps) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v)
        acc[r][v] = hn::CompressBits(acc[r][v], reinterpret_cast<const uint8_t *>(t.lanes + v));
    }
#pragma GCC unroll 2
    for (int v = 0; v < V; v += 2) {
      const auto words = RoundToPairs(acc[r][v], acc[r][v + 1 < V ? v + 1 : v]);
      const int64_t row = r * t.ld;
      if (V > 1 && !t.gaps) {
        hn::StoreU(words, d, at(row + v * kLanes));
        continue;
      }
      hn::StoreU(hn::LowerHalf(half, words), half, at(row + t.places[v]));
      if (V > 1) hn::StoreU(hn::UpperHalf(half, words), half, at(row + t.places[v + 1 < V ? v + 1 : v]));
    }
  }
}
#endif

// R rows of V vectors. kPixels: R output channels by V vectors of pixels; else R pixels by V vectors of channels. B:
// float, or Bf16Pair where words are of two channels. kMasked: with masks.
template <bool kPixels, class B, bool kMasked, int R, int V> HWY_INLINE void Tile(const ConvTile &t) {
  using T = std::conditional_t<kPixels && std::is_same_v<B, Bf16Pair>, ::opgraft::bfloat16, float>;
  const hn::ScalableTag<float> d;
  T *const y = static_cast<T *>(t.y);
  const T *const residual = static_cast<const T *>(t.residual);
  GemmVec acc[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = hn::Zero(d);
  }
  // What the sums meet at the end comes while they are made.
  if (kPixels && y) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if (!t.past) {
        __builtin_prefetch(y + r * t.ld, 1);
        __builtin_prefetch(y + r * t.ld + V * kLanes - 1, 1);
      }
      if (residual) {
        __builtin_prefetch(residual + r * t.ld);
        __builtin_prefetch(residual + r * t.ld + V * kLanes - 1);
      }
    }
  }
  const float *w = t.w, *x = t.x;
  // Channels may lie pages apart, where nothing else fetches ahead; a line is 16 floats.
  for (int64_t c = t.ahead_begin; kPixels && kByLines && c < t.ahead_end; ++c) {
    for (int64_t i = 0; i < V * kLanes; i += 16) __builtin_prefetch(x + c * t.stride + t.ahead + i);
  }
  const auto step = [&](const float *at) HWY_ATTR {
    const float *vectors = kPixels ? at : w, *factors = kPixels ? w : at;
    GemmVec b[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) b[v] = hn::LoadU(d, vectors + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto a = hn::Set(d, factors[r]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = AddProducts<B>(a, b[v], acc[r][v]);
    }
    w += kPanel;
  };
  if constexpr (kMasked) {
    // By taps, as reading a mask takes as long as some products.
    for (int64_t k = 0; k < t.taps; ++k) {
      hn::Mask<decltype(d)> in[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) in[v] = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t *>(t.masks + 4 * k + v));
      const float *at = x + t.offsets[k], *factors = w + k * kPanel;
      for (int64_t c = 0; c < t.steps; ++c, at += t.stride, factors += t.taps * kPanel) {
        GemmVec b[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) b[v] = hn::MaskedLoad(in[v], d, at + v * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const auto a = hn::Set(d, factors[r]);
#pragma GCC unroll 4
          for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(a, b[v], acc[r][v]);
        }
      }
    }
  } else if (t.taps == 1) {
    for (int64_t c = 0; c < t.steps; ++c, x += t.stride) {
      const float *at = x + t.offsets[0];
      if constexpr (kPixels && !kByLines) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) __builtin_prefetch(at + kAhead + v * kLanes);
      }
      step(at);
    }
  } else {
    for (int64_t c = 0; c < t.steps; ++c, x += t.stride)
      for (int64_t k = 0; k < t.taps; ++k) step(x + t.offsets[k]);
  }
  if (y) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const auto scale = kPixels ? hn::Set(d, t.scale[r]) : hn::LoadU(d, t.scale + v * kLanes);
        const auto shift = kPixels ? hn::Set(d, t.shift[r]) : hn::LoadU(d, t.shift + v * kLanes);
        acc[r][v] = hn::MulAdd(acc[r][v], scale, shift);
        if (kPixels && residual) acc[r][v] = hn::Add(acc[r][v], LoadF32(d, residual + r * t.ld + v * kLanes));
        acc[r][v] = Clamp(d, t.bounds, acc[r][v]);
      }
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    if (y) return kPixels ? StorePixels<R, V>(t, acc, y) : StoreColumns<R, V>(t, acc, y);
  }
#if HWY_TARGET == HWY_AVX3
  if constexpr (!std::is_same_v<T, float>) {
    if (y) return StoreWords<R, V>(t, acc, y);
  }
#endif
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], d, t.sums + r * kWidest + v * kLanes);
  }
}

// As many vectors as n lanes need: at most two, or four where the registers hold them.
template <bool kPixels, class B, bool kMasked, int R> HWY_INLINE void Widest(const ConvTile &t, int64_t n) {
  if constexpr (kPixels && 2 * R <= kTileRows) {
    if (n > 2 * kLanes) return Tile<kPixels, B, kMasked, R, 4>(t);
  }
  if (n > kLanes) return Tile<kPixels, B, kMasked, R, 2>(t);
  return Tile<kPixels, B, kMasked, R, 1>(t);
}

template <bool kPixels, class B, bool kMasked = false>
HWY_NOINLINE void AnyTileOf(int64_t rows, const ConvTile &t, int64_t n) {
  OfRows(rows, [&](auto r) HWY_ATTR { Widest<kPixels, B, kMasked, decltype(r)::value>(t, n); });
}
// T: of x; pairs: as Conv has it.
template <bool kPixels, class T> HWY_INLINE void AnyTile(bool pairs, int64_t rows, const ConvTile &t, int64_t n) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, ::opgraft::bfloat16>) {
    if (pairs) return AnyTileOf<kPixels, Bf16Pair>(rows, t, n);
  }
#endif
  if constexpr (kPixels && kMaskedTiles && std::is_same_v<T, float>) {
    if (t.masks) return AnyTileOf<kPixels, float, true>(rows, t, n);
  }
  AnyTileOf<kPixels, float>(rows, t, n);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
