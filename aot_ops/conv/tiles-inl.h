// Per SIMD target: the convolution of bfloat16 by AMX's tiles. NCHW: weights are rows of output channels, each with its
// C * kH * kW numbers in their order and zeros up to steps() pairs, or pairs of channels tap by tap; what the pixels of
// a band see is columns of such pairs, a row for each word. NHWC: what a pixel sees is a row of numbers and zeros, the
// weights are panels of pairs. taps-inl.h has the forms that make no such columns or rows.
#include "conv.h"

#if defined(OPGRAFT_CONV_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_TILES_INL_H_
#undef OPGRAFT_CONV_TILES_INL_H_
#else
#define OPGRAFT_CONV_TILES_INL_H_
#endif

#include "aot_ops/common/amx-inl.h"
#include "taps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// Pixels of y: `n` from column j on in each of `rows` rows from i on, whole rows where there are several.
struct Block {
  int64_t i, rows, j, n;
};

// The rows of x that a block sees, with their padding and by phase (every stride-th column), for every channel. The
// element (k, l) of the window of the block's pixel (r, q) then lies at(k, l) + r * stride rows + q behind the
// channel's first.
struct HalfLines {
  int64_t line, row, channel;  // numbers of a phase, of a row, of a channel
  HWY_INLINE HalfLines(const Conv &g, const Block &b)
      : line(half_line(g, b.n)), row(line * g.phases()), channel(row * half_rows(g, b.rows)) {}
  HWY_INLINE int64_t at(const Conv &g, int64_t k, int64_t l) const {
    const int64_t column = l * g.w.dilation;
    return k * g.h.dilation * row + column % g.w.stride * line + column / g.w.stride;
  }
};
HWY_INLINE void FillHalves(const Conv &g, const uint16_t *x, const Block &b, const HalfLines &lines, uint16_t *dst) {
  const int64_t plane = g.h.in * g.w.in, rows = half_rows(g, b.rows), n = b.n + (g.w.span() - 1) / g.w.stride;
  for (int64_t c = 0; c < g.channels / g.groups; ++c, x += plane)
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = g.h.at(b.i, 0) + r;
      for (int64_t q = 0; q < g.phases(); ++q, dst += lines.line) {
        Window w = g.w;  // of one element, from column q on
        w.before -= q;
        int64_t first = n, last = n;
        if (row >= 0 && row < g.h.in) Inside(w, b.j, 0, n, &first, &last);
        std::fill_n(dst, first, uint16_t(0));
        if (first < last) SpreadHalves(x + row * g.w.in + w.at(b.j + first, 0), w.stride, last - first, dst + first);
        std::fill_n(dst + last, n - last, uint16_t(0));
      }
    }
}

// The columns of a block, `ld` words from one row to the next. What vectors reach behind a row's last pixel is
// written over by what comes next; behind the band's last one there is room.
HWY_INLINE void FillWords(const Conv &g, const uint16_t *x, const Block &b, uint16_t *halves, uint32_t *dst,
                          int64_t ld) {
  const HalfLines lines(g, b);
  FillHalves(g, x, b, lines, halves);
  const int64_t each = g.channels / g.groups, wide = g.by_tap ? 2 * g.depth() : 1;  // channels side by side
  int64_t c = 0, k = 0, l = 0;
  const auto next = [&]() HWY_ATTR -> const uint16_t * {
    const uint16_t *from = c < each ? halves + c * lines.channel + lines.at(g, k, l) : nullptr;
    if (++c % wide) return from;
    c -= wide;
    if (++l == g.w.kernel) l = 0, ++k;
    if (k == g.h.kernel) k = 0, c += wide;
    return from;
  };
  for (int64_t w = 0; w < g.steps(); ++w, dst += ld) {
    const uint16_t *lower = next(), *upper = next();
    if (!lower) {
      std::fill_n(dst, b.rows * b.n, 0u);
      continue;
    }
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t from = r * g.h.stride * lines.row;
      if (upper) PairHalves<true>(lower + from, upper + from, b.n, dst + r * b.n);
      else PairHalves<false>(lower + from, nullptr, b.n, dst + r * b.n);
    }
  }
}

// The columns of the pixels [p0, p1) of y: whole rows together, parts of rows alone.
HWY_INLINE void FillColumnsOfWords(const Conv &g, const uint16_t *x, int64_t p0, int64_t p1, uint16_t *halves,
                                   uint32_t *dst) {
  for (int64_t p = p0; p < p1;) {
    Block b{p / g.w.out, 1, p % g.w.out, std::min(g.w.out - p % g.w.out, p1 - p)};
    if (b.n == g.w.out) b.rows = (p1 - p) / g.w.out;
    FillWords(g, x, b, halves, dst + p - p0, g.cut.stride);
    p += b.rows * b.n;
  }
}

// n neighbouring pixels of y, from `at` on, of each of `rows` output channels from o on, of their sums.
HWY_INLINE void PutTiles(const Conv &g, int64_t o, int64_t rows, const float *sums, int64_t at, int64_t n) {
  using T = ::opgraft::bfloat16;
  if (n < kPanel || g.residual) {
    for (int64_t r = 0; r < rows; ++r) Finish<false, T>(g, o + r, sums + r * kPanel, at + r * g.pixels(), n);
    return;
  }
  const hn::ScalableTag<float> d;
  const ConvBounds bounds = BoundsOf(g.activation);
  T *y = static_cast<T *>(g.y) + at;
  for (int64_t r = 0; r < rows; ++r, sums += kPanel, y += g.pixels()) {
    const auto scale = hn::Set(d, g.scale[o + r]), shift = hn::Set(d, g.shift[o + r]);
    PutPanel(bounds, scale, scale, shift, shift, hn::Load(d, sums), hn::Load(d, sums + kLanes), nullptr, y);
  }
}

// Output channels [row, row + rows) of a group, from o on of all, at the pixels [first, last) of an image.
struct TilePart {
  int64_t image, row, rows, o, first, last;
};
// NCHW, of columns of words.
HWY_INLINE void ChannelTiles(const Conv &g, const TilePart &t, const float *columns, AmxTiles &tiles) {
  HWY_ALIGN float sums[kPanel * kPanel];
  const int64_t ld = odd_lines(g.steps());
  for (int64_t q = t.first; q < t.last; q += kPanel) {
    tiles.Multiply<false, false>(t.rows, {g.packed + t.o * ld, ld * 4}, {columns + q - t.first, g.cut.stride * 4},
                                 g.steps(), {}, {sums, kPanel * 4});
    PutTiles(g, t.o, t.rows, sums, (t.image * g.outputs + t.o) * g.pixels() + q, std::min(kPanel, t.last - q));
  }
}
// NHWC, of rows of words.
HWY_INLINE void PixelTiles(const Conv &g, const TilePart &t, AmxRows pixels, AmxTiles &tiles) {
  HWY_ALIGN float sums[kPanel * kPanel];
  const int64_t m = g.m(), panels = (m + kPanel - 1) / kPanel;
  const float *panel = g.packed + ((t.o / m) * panels * kPanel + t.row) * g.steps();
  for (int64_t q = t.first; q < t.last; q += kPanel) {
    const int64_t n = std::min(kPanel, t.last - q);
    const AmxRows a{static_cast<const char *>(pixels.at) + (q - t.first) * pixels.apart, pixels.apart};
    tiles.Multiply<false, false>(n, a, {panel, kPanelRow}, g.steps(), {}, {sums, kPanel * 4});
    for (int64_t r = 0; r < n; ++r)
      Finish<true, ::opgraft::bfloat16>(g, t.o, sums + r * kPanel, (t.image * g.pixels() + q + r) * g.outputs + t.o,
                                        t.rows);
  }
}
#endif

// Units of work as GeneralUnits has them. A thread's scratch holds columns of words, then the rows they are made of, or
// rows of words.
inline void TileUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
#if HWY_TARGET == HWY_AVX3
  static_assert(kPanel == ::opgraft::simd::kAmxRows);
  const ConvCut &c = g.cut;
  if (c.source == ConvSource::kPadded)
    return g.nhwc ? PixelTapUnits(g, begin, end, scratch) : ChannelTapUnits(g, begin, end, scratch);
  const int64_t m = g.m(), ld = odd_lines(g.steps()), panels = (m + kPanel - 1) / kPanel;
  const int64_t each = g.channels / g.groups, plane = g.h.in * g.w.in;
  const bool in_place = WordsInPlace(g);
  int64_t *held = reinterpret_cast<int64_t *>(scratch);
  float *filled = scratch + scratch_head(c);
  AmxTiles tiles;
  for (int64_t unit = begin; unit < end; ++unit) {
    const ConvUnit u(g, unit);
    const int64_t band = u.band, group = u.group, image = u.image;
    int64_t first, last;
    band_of(c, band % c.bands, &first, &last);
    const int64_t at = image * g.channels * plane + group * each * (g.nhwc ? 1 : plane);
    const auto *x = static_cast<const uint16_t *>(g.x) + at;
    if (*held != band && !in_place) {
      auto *words = reinterpret_cast<uint32_t *>(filled);
      auto *halves = reinterpret_cast<uint16_t *>(filled);
      if (g.nhwc) FillRowsOfWords(g, x, first, last, halves, 2 * ld);
      else FillColumnsOfWords(g, x, first, last, halves + 2 * g.steps() * c.stride, words);
      *held = band;
    }
    const int64_t end_row = std::min(m, u.last_panel(c, panels) * kPanel);
    for (int64_t row = u.first_panel(c, panels) * kPanel; row < end_row; row += kPanel) {
      const TilePart t{image, row, std::min(kPanel, m - row), group * m + row, first, last};
      if (!g.nhwc) ChannelTiles(g, t, filled, tiles);
      else if (in_place) PixelTiles(g, t, {x + first * g.channels, g.channels * 2}, tiles);
      else PixelTiles(g, t, {filled, ld * 4}, tiles);
    }
  }
#endif
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
