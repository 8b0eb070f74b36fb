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
#include "fill-inl.h"

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

// Floats from the first element of a window to each of them, of which `each` are one position's; and one behind the
// last, which nothing reads.
HWY_INLINE void FindTaps(const Conv &g, int64_t each, int64_t *taps) {
  const int64_t n = g.cut.taps;
  for (int64_t t = 0; t < n; ++t) taps[t] = ConvOffset(g, t / g.w.kernel, t % g.w.kernel) * each;
  taps[n] = 0;
}

// run(position, row, column, begin, end) for every row of x, by phase, that the rows [first, last) of y see: from
// `position` on it has g.cut.line elements, of which [begin, end) lie in x, from this row and column of it on.
template <class Run> HWY_INLINE void EachPaddedRow(const Conv &g, int64_t first, int64_t last, const Run &run) {
  const ConvCut &c = g.cut;
  const int64_t rows = last - first + (g.h.span() - 1) / g.h.stride;
  for (int64_t phase = 0; phase < g.row_phases() * g.phases(); ++phase) {
    Window w = g.w;  // of one element, from the phase's column on
    w.before -= phase % g.phases();
    int64_t begin, end;
    Inside(w, 0, 0, c.line, &begin, &end);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = g.h.at(first + r, 0) + phase / g.phases();
      const bool in = row >= 0 && row < g.h.in && begin < end;
      run(phase * c.plane + r * c.line, in ? row : 0, in ? w.at(begin, 0) : 0, in ? begin : 0, in ? end : 0);
    }
  }
}

// to[i] = lower[i * stride] | upper[i * stride] << 16 for i < n, and whole vectors behind these; reads nothing behind
// the last of them. upper: or null, of zeros.
HWY_INLINE void PairSpread(const uint16_t *lower, const uint16_t *upper, int64_t stride, int64_t n, uint32_t *to) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d16;
  const auto word = [&](int64_t i)
                        HWY_ATTR { return lower[i * stride] | (upper ? uint32_t(upper[i * stride]) << 16 : 0u); };
  int64_t i = 0;
  if (upper && stride == 1) {
    i = n / kLanes * kLanes;
    PairHalves<true>(lower, upper, i, to);
    if (i == n) return;
    const auto rest = size_t(n - i);
    const auto upper_words = hn::PromoteTo(d32, LoadBitsN(d16, upper + i, rest));
    hn::StoreU(hn::Or(hn::PromoteTo(d32, LoadBitsN(d16, lower + i, rest)), hn::ShiftLeft<16>(upper_words)), d32,
               to + i);
    return;
  }
  if (upper && stride == 2) {  // the lower halves of words, of which the last may end behind x
    const auto words = [](const uint16_t *from) HWY_ATTR { return reinterpret_cast<const uint32_t *>(from); };
    const auto mask = hn::Set(d32, 0xffffu);
    for (; i + kLanes < n; i += kLanes) {
      const auto low = hn::And(hn::LoadU(d32, words(lower + 2 * i)), mask);
      hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(hn::LoadU(d32, words(upper + 2 * i)))), d32, to + i);
    }
    const auto rest = hn::FirstN(d32, size_t(n - 1 - i));
    const auto low = hn::And(hn::MaskedLoad(rest, d32, words(lower + 2 * i)), mask);
    hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(hn::MaskedLoad(rest, d32, words(upper + 2 * i)))), d32, to + i);
    to[n - 1] = word(n - 1);
    return;
  }
  for (; i < n; ++i) to[i] = word(i);
}

// The rows of x that the rows [first, last) of y see, with their padding, as pairs of channels. What is written behind
// a row is written over by what comes next; behind the last one of a pair there is room.
HWY_INLINE void FillChannelPairs(const Conv &g, const uint16_t *x, int64_t first, int64_t last, uint32_t *dst) {
  const ConvCut &c = g.cut;
  const int64_t each = g.channels / g.groups, plane = g.h.in * g.w.in;
  for (int64_t channel = 0; channel < 2 * c.steps; channel += 2, dst += c.stride) {
    if (channel >= each) {
      std::fill_n(dst, c.stride, 0u);
      continue;
    }
    EachPaddedRow(g, first, last, [&](int64_t at, int64_t row, int64_t column, int64_t begin, int64_t end) HWY_ATTR {
      uint32_t *to = dst + at;
      std::fill_n(to, begin, 0u);
      if (begin < end) {
        const uint16_t *from = x + channel * plane + row * g.w.in + column;
        PairSpread(from, channel + 1 < each ? from + plane : nullptr, g.w.stride, end - begin, to + begin);
      }
      std::fill_n(to + end, c.line - end, 0u);
    });
  }
}

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

// The rows of x that the rows [first, last) of y see, with their padding, NHWC, a pixel's channels `ld` numbers apart.
HWY_INLINE void FillPixels(const Conv &g, const uint16_t *x, int64_t first, int64_t last, int64_t ld, uint16_t *dst) {
  const int64_t each = g.channels / g.groups, line = g.cut.line;
  const bool whole = ld == g.channels && g.w.stride == 1;  // a row of pixels is one of numbers
  EachPaddedRow(g, first, last, [&](int64_t at, int64_t row, int64_t column, int64_t begin, int64_t end) HWY_ATTR {
    uint16_t *to = dst + at * ld;
    const uint16_t *from = x + (row * g.w.in + column) * g.channels;
    std::fill_n(to, begin * ld, uint16_t(0));
    if (whole) std::copy_n(from, (end - begin) * each, to + begin * ld);
    else
      for (int64_t q = begin; q < end; ++q, from += g.w.stride * g.channels) std::copy_n(from, each, to + q * ld);
    std::fill_n(to + end * ld, (line - end) * ld, uint16_t(0));
  });
}

// 32 sums, times a scale and with a shift and a residual (or null), rounded by the machine: what is denormal becomes 0.
HWY_INLINE void PutPanel(ConvBounds bounds, GemmVec scale, GemmVec upper_scale, GemmVec shift, GemmVec upper_shift,
                         GemmVec lower, GemmVec upper, const ::opgraft::bfloat16 *residual, ::opgraft::bfloat16 *y) {
  const hn::ScalableTag<float> d;
  lower = hn::MulAdd(lower, scale, shift);
  upper = hn::MulAdd(upper, upper_scale, upper_shift);
  if (residual) lower = hn::Add(lower, LoadF32(d, residual)), upper = hn::Add(upper, LoadF32(d, residual + kLanes));
  hn::StoreU(RoundToPairs(Clamp(d, bounds, lower), Clamp(d, bounds, upper)), d, reinterpret_cast<float *>(y));
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
