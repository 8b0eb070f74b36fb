// Per SIMD target: NHWC, read where it lies: pixels by panels of output channels, whose vectors of weights are
// multiplied by one number of each pixel at a time. 1 x 1 of float32 in place; bfloat16 by pairs of channels
// (AVX512-BF16), where a word of x is such a pair: the rows of x that a band of y sees are held with their padding, by
// phase, as taps-inl.h has them for AMX, and are read tap by tap; or what each pixel sees is a row of words, x itself
// where windows have one element.
#include "conv.h"

#if defined(OPGRAFT_CONV_PIXELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_PIXELS_INL_H_
#undef OPGRAFT_CONV_PIXELS_INL_H_
#else
#define OPGRAFT_CONV_PIXELS_INL_H_
#endif

#include "words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Pixels side by side, and what each of them sees: `steps` words, numbers of float32 or pairs of bfloat16, from each of
// `count` taps on. In bytes, as x may begin anywhere.
struct PixelWords {
  const char *from;
  int64_t apart, count, steps;
  const int64_t *taps;
};

// A tile's results: output channels [o, o + n), from `at` on in y; its pixels lie g.outputs apart.
struct PixelPlace {
  int64_t o, n, at;
};

// R pixels by V vectors of output channels, whose weights are the panel w.
template <class T, int R, int V>
HWY_NOINLINE void PixelTile(const Conv &g, const PixelWords &x, const float *w, const PixelPlace &to) {
  using B = std::conditional_t<std::is_same_v<T, float>, float, Bf16Pair>;
  const hn::ScalableTag<float> d;
  GemmVec acc[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[r][v] = hn::Zero(d);
  }
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
        for (int v = 0; v < V; ++v) acc[r][v] = AddProducts<B>(a, b[v], acc[r][v]);
      }
      rows.advance(sizeof(float));
    }
  }
  const ConvBounds bounds = BoundsOf(g.activation);
  T *y = static_cast<T *>(g.y) + to.at;
  const T *residual = g.residual ? static_cast<const T *>(g.residual) + to.at : nullptr;
  if (to.n < V * kLanes || (std::is_same_v<B, Bf16Pair> && V == 1)) {
    HWY_ALIGN float sums[V * kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) hn::Store(acc[r][v], d, sums + v * kLanes);
      Finish<true, T>(g, to.o, sums, to.at + r * g.outputs, to.n);
    }
    return;
  }
  GemmVec scale[V], shift[V];
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    scale[v] = hn::LoadU(d, g.scale + to.o + v * kLanes);
    shift[v] = hn::LoadU(d, g.shift + to.o + v * kLanes);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r, y += g.outputs, residual += residual ? g.outputs : 0) {
    if constexpr (std::is_same_v<T, float>) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        auto sum = hn::MulAdd(acc[r][v], scale[v], shift[v]);
        if (residual) sum = hn::Add(sum, hn::LoadU(d, residual + v * kLanes));
        hn::StoreU(Clamp(d, bounds, sum), d, y + v * kLanes);
      }
    }
#if HWY_TARGET == HWY_AVX3
    if constexpr (!std::is_same_v<T, float> && V == 2)
      PutPanel(bounds, scale[0], scale[1], shift[0], shift[1], acc[r][0], acc[r][1], residual, y);
#endif
  }
}

// Panels [first, last) of output channels at `lines` rows of `wide` pixels, x.from the first, `line` pixels from one
// row to the next; `pixel`: the first one's place in y.
template <class T> HWY_INLINE void PixelPanels(const Conv &g, const ConvUnit &u, PixelWords x, int64_t lines,
                                               int64_t wide, int64_t line, int64_t pixel) {
  const int64_t m = g.m(), panels = (m + kPanel - 1) / kPanel;
  const char *from = x.from;
  for (int64_t panel = u.first_panel(g.cut, panels); panel < u.last_panel(g.cut, panels); ++panel) {
    const float *w = g.packed + (u.group * panels + panel) * kPanel * g.steps();
    const int64_t row = panel * kPanel, n = std::min(kPanel, m - row), o = u.group * m + row;
    for (int64_t i = 0; i < lines; ++i)
      for (int64_t j = 0, rows; j < wide; j += rows) {
        rows = TileSize(wide, j);
        x.from = from + (i * line + j) * x.apart;
        const PixelPlace to{o, n, (u.image * g.pixels() + pixel + i * wide + j) * g.outputs + o};
        OfRows(rows, [&](auto r) HWY_ATTR {
          constexpr int kRows = decltype(r)::value;
          if (n > kLanes) PixelTile<T, kRows, 2>(g, x, w, to);
          else PixelTile<T, kRows, 1>(g, x, w, to);
        });
      }
  }
}

// Units of work as GeneralUnits has them, of 1 x 1 of float32 in place.
inline void PixelUnits(const Conv &g, int64_t begin, int64_t end, float *) {
  const int64_t none = 0;
  for (int64_t unit = begin; unit < end; ++unit) {
    const ConvUnit u(g, unit);
    int64_t first, last;
    band_of(g.cut, u.band % g.cut.bands, &first, &last);
    const float *from = static_cast<const float *>(g.x) + (u.image * g.pixels() + first) * g.channels + u.group * g.k();
    PixelPanels<float>(g, u, {reinterpret_cast<const char *>(from), 4 * g.channels, 1, g.k(), &none}, 1, last - first,
                       0, first);
  }
}

// The same of bfloat16 by pairs. A thread's scratch holds pixels of x, or rows of words.
inline void PairUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
#if HWY_TARGET == HWY_AVX3
  const ConvCut &c = g.cut;
  const bool padded = c.source == ConvSource::kPadded, in_place = !padded && WordsInPlace(g);
  const int64_t each = g.channels / g.groups;
  const int64_t ld = in_place ? g.channels / 2 : padded ? tap_floats(g) : odd_lines(g.steps());
  int64_t *held = reinterpret_cast<int64_t *>(scratch), *taps = held + 1;
  float *words = scratch + scratch_head(c);
  if (padded) FindTaps(g, 4 * ld, taps);
  else taps[0] = 0;
  PixelWords x{nullptr, 4 * ld, c.taps, c.steps, taps};
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
    x.from =
        in_place ? reinterpret_cast<const char *>(from + first * g.channels) : reinterpret_cast<const char *>(words);
    // Of padded rows one row of y is a line, else all pixels are.
    if (padded) PixelPanels<::opgraft::bfloat16>(g, u, x, last - first, g.w.out, c.line, first * g.w.out);
    else PixelPanels<::opgraft::bfloat16>(g, u, x, 1, last - first, 0, first);
  }
#endif
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
