// Per SIMD target: the convolution of bfloat16 by AMX's tiles, tap by tap. The rows of x that a band of y sees are held
// with their padding, by phase (every stride-th row and column), once: NCHW as words of two channels, of which 16 are a
// tile's rows; NHWC as they are, 16 or 32 pixels a tile's rows. An element of the window is a distance from the pixel;
// the positions of a band's rows and of the padding between them are multiplied in one run.
#include "conv.h"

#if defined(OPGRAFT_CONV_TAPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_TAPS_INL_H_
#undef OPGRAFT_CONV_TAPS_INL_H_
#else
#define OPGRAFT_CONV_TAPS_INL_H_
#endif

#include "aot_ops/common/amx-inl.h"
#include "words-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// What pixels that lie beside each other see: 16 pairs of channels at a time, then from the next tap's place on.
struct TapSteps {
  const float *from;    // what the first pixel's first element would be
  const int64_t *taps;  // floats from there to each tap
  int64_t apart, steps, left;
  const void *at;

  HWY_INLINE TapSteps(const float *from, const int64_t *taps, int64_t apart, int64_t steps)
      : from(from), taps(taps), apart(apart), steps(steps), left(steps), at(from + taps[0]) {}
  HWY_INLINE void Next(int64_t bytes) {
    if (--left) {
      at = static_cast<const char *>(at) + bytes;
      return;
    }
    left = steps;
    at = from + *++taps;
  }
};
// A word of every pixel is a row, B; or all words of a pixel are, A.
HWY_INLINE void NextStep(TapSteps &b) { b.Next(kConvLine * b.apart); }
HWY_INLINE void NextWords(TapSteps &a) { a.Next(64); }

// Units of bands of y's rows, NCHW. A thread's scratch holds pairs of channels and the sums of 32 output channels at
// all positions of the band, those of the padding among them.
HWY_INLINE void ChannelTapUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  const ConvCut &c = g.cut;
  const int64_t m = g.m(), panels = (m + kPanel - 1) / kPanel, ld = odd_lines(g.steps());
  const int64_t steps = g.steps() / kConvLine;
  int64_t *held = reinterpret_cast<int64_t *>(scratch), *taps = held + 1;
  float *pairs = scratch + scratch_head(c), *sums = pairs + c.steps * c.stride;
  FindTaps(g, 1, taps);
  AmxTiles tiles;
  for (int64_t unit = begin; unit < end; ++unit) {
    const ConvUnit u(g, unit);
    int64_t first, last;
    band_of(c, u.band % c.bands, &first, &last);
    if (*held != u.band) {
      const int64_t at = (u.image * g.channels + u.group * (g.channels / g.groups)) * g.h.in * g.w.in;
      FillChannelPairs(g, static_cast<const uint16_t *>(g.x) + at, first, last, reinterpret_cast<uint32_t *>(pairs));
      *held = u.band;
    }
    const int64_t rows = last - first, apart = tap_positions(c, rows);
    for (int64_t panel = u.first_panel(c, panels); panel < u.last_panel(c, panels); ++panel) {
      const int64_t row = panel * kPanel, o = u.group * m + row, outputs = std::min(kPanel, m - row);
      // What follows the sums of a row of y is done with the steps of the tiles behind it.
      int64_t done = 0, ready = 0;  // rows of all output channels
      const auto follow = [&](int64_t most) HWY_ATTR {
        for (const int64_t until = std::min(ready, done + most); done < until; ++done) {
          const int64_t i = done / outputs, r = done % outputs;
          Finish<false, ::opgraft::bfloat16>(g, o + r, sums + r * apart + i * c.line,
                                             (u.image * g.outputs + o + r) * g.pixels() + (first + i) * g.w.out,
                                             g.w.out);
        }
      };
      for (int64_t p = 0; p < rows * c.line; p += kPanel) {
        const int64_t each = (ready - done + steps - 1) / steps;
        tiles.Multiply<false, false>(outputs, AmxRows{g.packed + o * ld, ld * 4},
                                     TapSteps(pairs + p, taps, c.stride * 4, c.steps / kConvLine), g.steps(), {},
                                     {sums + p, apart * 4}, [&]() HWY_ATTR { follow(each); });
        ready = std::min(rows, (p + kPanel) / c.line) * outputs;
      }
      follow(ready);
    }
  }
}

// One of two pointers, without a branch.
template <class T> HWY_INLINE T *Either(bool first, T *one, T *other) {
  const auto to = reinterpret_cast<uintptr_t>(one), from = reinterpret_cast<uintptr_t>(other);
  return reinterpret_cast<T *>(from ^ ((from ^ to) & -uintptr_t(first)));
}

// What follows the sums of 32 positions. Those of the padding go to a line that nobody reads: to guess at the end of a
// row, and wrongly, costs more.
struct PixelTapPlace {
  int64_t o, n, at;      // output channels, and where in y the row is in which the tile begins
  int64_t rows, column;  // of the band from this row on; of the first position
};
struct FollowPixelTaps {
  const Conv &g;
  ::opgraft::bfloat16 *nowhere;  // kPanel
  HWY_INLINE void operator()(const PixelTapPlace &to, int64_t row, int64_t rows, const float *sums) const {
    using T = ::opgraft::bfloat16;
    T *y = static_cast<T *>(g.y), *none = nowhere;
    const T *residual = static_cast<const T *>(g.residual);
    const int64_t line = g.cut.line, wide = g.w.out, outputs = g.outputs;
    int64_t i = 0, q = to.column + row;
    for (; q >= line; q -= line) ++i;
    const auto next = [&] {
      const int64_t last = ++q == line;
      i += last, q &= last - 1;
    };
    if (to.n < kPanel) {
      for (int64_t r = 0; r < rows; ++r, sums += kPanel, next())
        if (q < wide && i < to.rows) Finish<true, T>(g, to.o, sums, to.at + (i * wide + q) * outputs, to.n);
      return;
    }
    const hn::ScalableTag<float> d;
    const ConvBounds bounds = BoundsOf(g.activation);
    const auto scale = hn::LoadU(d, g.scale + to.o), upper_scale = hn::LoadU(d, g.scale + to.o + kLanes);
    const auto shift = hn::LoadU(d, g.shift + to.o), upper_shift = hn::LoadU(d, g.shift + to.o + kLanes);
    for (int64_t r = 0; r < rows; ++r, sums += kPanel, next()) {
      const bool in = (q < wide) & (i < to.rows);
      const int64_t at = to.at + (i * wide + q) * outputs;
      PutPanel(bounds, scale, upper_scale, shift, upper_shift, hn::Load(d, sums), hn::Load(d, sums + kLanes),
               residual ? Either<const T>(in, residual + at, none) : nullptr, Either(in, y + at, none));
    }
  }
};

// Units of bands of y's rows, NHWC. A thread's scratch holds the pixels of x.
HWY_INLINE void PixelTapUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  const ConvCut &c = g.cut;
  const int64_t m = g.m(), panels = (m + kPanel - 1) / kPanel, each = g.channels / g.groups, ld = tap_floats(g);
  int64_t *held = reinterpret_cast<int64_t *>(scratch), *taps = held + 1;
  float *pixels = scratch + scratch_head(c);
  FindTaps(g, ld, taps);
  HWY_ALIGN ::opgraft::bfloat16 nowhere[kPanel] = {};
  AmxFollowed<float, PixelTapPlace, FollowPixelTaps> tiles(FollowPixelTaps{g, nowhere});
  for (int64_t unit = begin; unit < end; ++unit) {
    const ConvUnit u(g, unit);
    int64_t first, last;
    band_of(c, u.band % c.bands, &first, &last);
    if (*held != u.band) {
      const int64_t at = u.image * g.channels * g.h.in * g.w.in + u.group * each;
      FillPixels(g, static_cast<const uint16_t *>(g.x) + at, first, last, 2 * ld, reinterpret_cast<uint16_t *>(pixels));
      *held = u.band;
    }
    const int64_t rows = last - first;
    for (int64_t panel = u.first_panel(c, panels); panel < u.last_panel(c, panels); ++panel) {
      const int64_t row = panel * kPanel;
      const float *weights = g.packed + (u.group * panels + panel) * kPanel * g.steps();
      const int64_t o = u.group * m + row, n = std::min(kPanel, m - row);
      for (int64_t p = 0; p < rows * c.line; p += kPanel) {
        const int64_t i = p / c.line, at = (u.image * g.pixels() + (first + i) * g.w.out) * g.outputs + o;
        const int64_t left = rows * c.line - p;
        tiles.Multiply(left > kLanes ? kPanel : kLanes, TapSteps(pixels + p * ld, taps, ld * 4, c.steps / kConvLine),
                       {weights, kPanelRow}, g.steps(), {}, {o, n, at, rows - i, p % c.line});
      }
    }
  }
  tiles.Finish();
}
#endif

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
