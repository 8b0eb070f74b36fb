// Per SIMD target: the convolution of bfloat16 by pairs of channels (AVX512-BF16), NHWC, where a word of x is such a
// pair as it lies. The rows of x that a band of y sees are held with their padding, by phase, as taps-inl.h has them
// for AMX, and are read tap by tap; or what each pixel sees is a row of words, x itself where windows have one element.
#include "conv.h"

#if defined(OPGRAFT_CONV_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_PAIRS_INL_H_
#undef OPGRAFT_CONV_PAIRS_INL_H_
#else
#define OPGRAFT_CONV_PAIRS_INL_H_
#endif

#include "words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// Pixels side by side, and what each of them sees: `steps` words from each of `count` taps on. In bytes, as x may begin
// anywhere.
struct PairPixels {
  const char *from;
  int64_t apart, count, steps;
  const int64_t *taps;
};

// A tile's results: output channels [o, o + n), from `at` on in y; its pixels lie g.outputs apart.
struct PairPlace {
  int64_t o, n, at;
};

// R pixels by V vectors of output channels, whose weights are the panel w.
template <int R, int V>
HWY_NOINLINE void PairTile(const Conv &g, const PairPixels &x, const float *w, const PairPlace &to) {
  using T = ::opgraft::bfloat16;
  const hn::ScalableTag<float> d;
  GemmVec acc[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = hn::Zero(d);
  for (int64_t t = 0; t < x.count; ++t) {
    RowsTogether<R> rows(x.from + x.taps[t], x.apart);
    for (int64_t i = 0; i < x.steps; ++i, w += kPanel) {
      GemmVec b[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) b[v] = hn::LoadU(d, w + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        float word;
        std::memcpy(&word, rows.at(r), sizeof word);
        const auto a = hn::Set(d, word);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[r][v] = AddProducts<Bf16Pair>(a, b[v], acc[r][v]);
      }
      rows.advance(sizeof(float));
    }
  }
  if (to.n < kPanel) {
    HWY_ALIGN float sums[kPanel];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) hn::Store(acc[r][v], d, sums + v * kLanes);
      Finish<true, T>(g, to.o, sums, to.at + r * g.outputs, to.n);
    }
    return;
  }
  const ConvBounds bounds = BoundsOf(g.activation);
  const auto scale = hn::LoadU(d, g.scale + to.o), upper_scale = hn::LoadU(d, g.scale + to.o + kLanes);
  const auto shift = hn::LoadU(d, g.shift + to.o), upper_shift = hn::LoadU(d, g.shift + to.o + kLanes);
  T *y = static_cast<T *>(g.y) + to.at;
  const T *residual = g.residual ? static_cast<const T *>(g.residual) + to.at : nullptr;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
    PutPanel(bounds, scale, upper_scale, shift, upper_shift, acc[r][0], acc[r][1],
             residual ? residual + r * g.outputs : nullptr, y + r * g.outputs);
}

template <int V>
HWY_INLINE void AnyPairTile(int64_t rows, const Conv &g, const PairPixels &x, const float *w, const PairPlace &to) {
  switch (rows) {
    case 1: return PairTile<1, V>(g, x, w, to);
    case 2: return PairTile<2, V>(g, x, w, to);
    case 3: return PairTile<3, V>(g, x, w, to);
    case 4: return PairTile<4, V>(g, x, w, to);
    case 5: return PairTile<5, V>(g, x, w, to);
    case 6: return PairTile<6, V>(g, x, w, to);
    case 7: return PairTile<7, V>(g, x, w, to);
    case 8: return PairTile<8, V>(g, x, w, to);
    case 9: return PairTile<9, V>(g, x, w, to);
    case 10: return PairTile<10, V>(g, x, w, to);
    case 11: return PairTile<11, V>(g, x, w, to);
    case 12: return PairTile<12, V>(g, x, w, to);
    default: return;
  }
}
#endif

// Units of work as GeneralUnits has them. A thread's scratch holds pixels of x, or rows of words.
inline void PairUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
#if HWY_TARGET == HWY_AVX3
  const ConvCut &c = g.cut;
  const bool padded = c.source == ConvSource::kPadded, in_place = !padded && WordsInPlace(g);
  const int64_t m = g.m(), panels = (m + kPanel - 1) / kPanel, each = g.channels / g.groups;
  const int64_t ld = in_place ? g.channels / 2 : padded ? tap_floats(g) : odd_lines(g.steps());
  int64_t *held = reinterpret_cast<int64_t *>(scratch), *taps = held + 1;
  float *words = scratch + scratch_head(c);
  if (padded) FindTaps(g, 4 * ld, taps);
  else taps[0] = 0;
  PairPixels x{nullptr, 4 * ld, c.taps, c.steps, taps};
  for (int64_t unit = begin; unit < end; ++unit) {
    const ConvUnit u(g, unit);
    int64_t first, last;
    band_of(c, u.band % c.bands, &first, &last);
    const uint16_t *from = static_cast<const uint16_t *>(g.x) + u.image * g.channels * g.h.in * g.w.in + u.group * each;
    if (*held != u.band && !in_place) {
      auto *to = reinterpret_cast<uint16_t *>(words);
      if (padded) FillPixels(g, from, first, last, 2 * ld, to);
      else FillRowsOfWords(g, from, first, last, to, 2 * ld);
      *held = u.band;
    }
    const auto *pixels =
        in_place ? reinterpret_cast<const char *>(from + first * g.channels) : reinterpret_cast<const char *>(words);
    // Of padded rows one row of y is a line, else all pixels are.
    const int64_t lines = padded ? last - first : 1, wide = padded ? g.w.out : last - first;
    for (int64_t panel = u.first_panel(c, panels); panel < u.last_panel(c, panels); ++panel) {
      const float *w = g.packed + (u.group * panels + panel) * kPanel * g.steps();
      const int64_t row = panel * kPanel, n = std::min(kPanel, m - row), o = u.group * m + row;
      for (int64_t i = 0; i < lines; ++i)
        for (int64_t j = 0, rows; j < wide; j += rows) {
          rows = TileSize(wide, j);
          x.from = pixels + (i * c.line + j) * x.apart;
          const int64_t pixel = padded ? (first + i) * g.w.out + j : first + j;
          const PairPlace to{o, n, (u.image * g.pixels() + pixel) * g.outputs + o};
          if (n > kLanes) AnyPairTile<2>(rows, g, x, w, to);
          else AnyPairTile<1>(rows, g, x, w, to);
        }
    }
  }
#endif
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
