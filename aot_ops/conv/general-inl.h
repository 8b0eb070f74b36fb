// Per SIMD target: the convolution as a sum over input channels and taps, for panels of output channels.
#include <bit>

#include "conv.h"

#if defined(OPGRAFT_CONV_GENERAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_GENERAL_INL_H_
#undef OPGRAFT_CONV_GENERAL_INL_H_
#else
#define OPGRAFT_CONV_GENERAL_INL_H_
#endif

#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Positions of a band: pixels of y in lines of `wide`, `line` apart; `first` is the first one's place in y's plane.
// Vectors of pixels begin `lead` pixels behind it.
struct Band {
  int64_t image, group, line, wide, count, first, lead = 0;
};

// rows output channels from o on at n positions from q on, of their sums.
template <class T>
void PutPixels(const Conv &g, const Band &b, int64_t o, int64_t rows, int64_t q, int64_t n, const float *sums) {
  for (int64_t done = 0, some; done < n; done += some) {
    const int64_t line = (q + done) / b.line, at = (q + done) % b.line;
    some = std::min(n - done, b.line - at);
    const int64_t valid = std::min(some, b.wide - at);
    if (valid <= 0) continue;
    for (int64_t r = 0; r < rows; ++r)
      Finish<false, T>(g, o + r, sums + r * kWidest + done,
                       (b.image * g.outputs + o + r) * g.pixels() + b.first + line * b.wide + at, valid);
  }
}

// Sets t's gaps for n positions from `at` in a line on; false where a vector would reach beyond the band's `pixels`
// that are left.
inline bool SetGaps(const Band &b, int64_t at, int64_t n, int64_t pixels, ConvTile &t) {
  int64_t place = 0;
  for (int64_t v = 0; v * kLanes < n; ++v) {
    if (place + kLanes > pixels) return false;
    uint64_t lanes = 0;
    for (int64_t i = 0, some; i < kLanes; i += some, at = at + some == b.line ? 0 : at + some) {
      some = std::min(kLanes - i, (at < b.wide ? b.wide : b.line) - at);
      if (at >= b.wide) continue;
      lanes |= ((uint64_t(1) << some) - 1) << i;
      place += some;
    }
    t.lanes[v] = lanes;
    t.places[v] = place - int64_t(std::popcount(lanes));
  }
  return t.gaps = true;
}

// Vectors that hold n pixels, as Widest has them.
inline int64_t VectorsOf(int64_t n) { return n > 2 * kLanes ? 4 : n > kLanes ? 2 : 1; }

// Whether n pixels from `pixel` on, with those that lie up to whole vectors behind them, see only what lies in x.
inline bool InsideX(const Conv &g, int64_t pixel, int64_t n) {
  const int64_t i = pixel / g.w.out, j = pixel % g.w.out, last = j + VectorsOf(n) * kLanes - 1;
  const bool rows = g.h.at(i, 0) >= 0 && g.h.at(i, g.h.kernel - 1) < g.h.in;
  return rows && i < g.h.out && g.w.at(j, 0) >= 0 && g.w.at(last, g.w.kernel - 1) < g.w.in;
}

// Which lanes of the vectors of n pixels from `pixel` on lie in x at each tap: four a tap.
inline void FillMasks(const Conv &g, int64_t pixel, int64_t n, uint16_t *masks) {
  const int64_t vectors = VectorsOf(n);
  uint32_t rows[kMostMasks], columns[kMostMasks];
  for (int64_t v = 0; v < vectors; ++v) {
    std::fill_n(rows, g.h.kernel, 0u);
    std::fill_n(columns, g.w.kernel, 0u);
    int64_t i = (pixel + v * kLanes) / g.w.out, j = (pixel + v * kLanes) % g.w.out;
    for (int64_t lane = 0, some; lane < kLanes && i < g.h.out; lane += some, ++i, j = 0) {
      some = std::min(kLanes - lane, g.w.out - j);
      const auto lanes = [&](int64_t from, int64_t to) {  // of these columns
        from = std::max(from, j), to = std::min(to, j + some);
        return from < to ? ((1u << (to - from)) - 1) << (lane + from - j) : 0u;
      };
      for (int64_t l = 0; l < g.w.kernel; ++l) columns[l] |= lanes(-g.w.at(0, l), g.w.in - g.w.at(0, l));
      for (int64_t k = 0; k < g.h.kernel; ++k)
        if (const int64_t row = g.h.at(i, k); row >= 0 && row < g.h.in) rows[k] |= lanes(j, j + some);
    }
    for (int64_t k = 0, t = 0; k < g.h.kernel; ++k)
      for (int64_t l = 0; l < g.w.kernel; ++l, ++t) masks[4 * t + v] = uint16_t(rows[k] & columns[l]);
  }
}

// Of a tile of pixels.
inline int64_t PixelVectors(const Conv &g) { return 2 * g.m() > kTileRows ? 2 : 4; }

// Panel [p0, p1) of output channels with pixels in lanes. x: of the band.
template <class T> void PixelLanes(const Conv &g, const Band &b, ConvTile t, const float *x, int64_t p0, int64_t p1) {
  constexpr bool kFloat = std::is_same_v<T, float>;
  uint16_t masks[4 * kMostMasks];
  const bool direct = kFloat || g.pairs;  // tiles store what y holds
  constexpr int64_t kStrip = 4096;        // floats of x that stay in L1 while the panels go over them
  const int64_t m = g.m(), k = t.steps * t.taps, step = PixelVectors(g) * kLanes;
  const int64_t strip = std::max<int64_t>(1, kStrip / t.steps / step) * step;
  // Of a sum without taps every tile fetches its share of the next strip: see kByLines.
  const int64_t outputs = std::min(m, p1 * kPanel) - p0 * kPanel;
  const int64_t share = kByLines && t.taps == 1 ? std::min(t.steps, (t.steps * kTileRows + outputs - 1) / outputs) : 0;
  t.ahead = strip;
  const int64_t pixels = (b.count + b.line - b.wide) / b.line * b.wide;
  for (int64_t from = 0, to; from < b.count; from = to) {
    to = std::min(b.count, std::max(from, b.lead) + strip);
    int64_t fetched = 0;
    for (int64_t p = p0; p < p1; ++p) {
      const int64_t end = std::min(m, (p + 1) * kPanel), before = fetched;
      for (int64_t q = from, n; q < to; q += n) {
        n = std::min((q < b.lead ? b.lead : to) - q, step);
        t.x = x + q;
        const int64_t at = q % b.line;
        // Wholly within a line, and as many vectors as a tile has: results go straight from registers.
        const bool filled = n == kLanes || n == 2 * kLanes || n == 4 * kLanes;
        const int64_t before_it = q / b.line * b.wide + std::min(at, b.wide);  // pixels of the band
        t.gaps = false;
        t.places[0] = 0;
        if (g.cut.source == ConvSource::kMasked) {
          t.masks = InsideX(g, b.first + q, n) ? nullptr : masks;
          if (t.masks) FillMasks(g, b.first + q, n, masks);
        }
        const bool straight =
            direct && filled && (at + n <= b.wide || (!g.residual && SetGaps(b, at, n, pixels - before_it, t)));
        fetched = before;
        for (int64_t row = p * kPanel, rows; row < end; row += rows) {
          rows = TileSize(end, row);
          const int64_t o = b.group * m + row;
          t.w = g.packed + (b.group * ((m + kPanel - 1) / kPanel) + p) * kPanel * k + row % kPanel;
          t.scale = g.scale + o, t.shift = g.shift + o;
          const int64_t y = (b.image * g.outputs + o) * g.pixels() + b.first + before_it;
          t.y = straight ? static_cast<T *>(g.y) + y : nullptr;
          t.past = kFloat && g.past && straight && !t.gaps && reinterpret_cast<uintptr_t>(t.y) % (4 * kLanes) == 0;
          t.residual = straight && g.residual ? static_cast<const T *>(g.residual) + y : nullptr;
          t.ahead_begin = std::min(fetched, t.steps - share), t.ahead_end = t.ahead_begin + share;
          fetched += share;
          AnyTile<true, T>(g.pairs, rows, t, n);
          if (!straight) PutPixels<T>(g, b, o, rows, q, n, t.sums);
        }
      }
    }
  }
}

// The same with output channels in lanes. Tiles lie within a line.
template <class T> void ChannelLanes(const Conv &g, const Band &b, ConvTile t, const float *x, int64_t p0, int64_t p1) {
  constexpr bool kFloat = std::is_same_v<T, float>;
  HWY_ALIGN float turned[kPanel * 16];
  const int64_t m = g.m(), k = t.steps * t.taps;
  const bool straight = kFloat && !g.residual && !g.nhwc;
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t n = std::min(m - p * kPanel, kPanel), o = b.group * m + p * kPanel;
    t.w = g.packed + (b.group * ((m + kPanel - 1) / kPanel) + p) * kPanel * k;
    t.scale = g.scale + o, t.shift = g.shift + o;
    const bool whole = straight && (n == kPanel || n == kLanes);
    for (int64_t q = 0; q < b.count; q += b.line)
      for (int64_t j = 0, rows; j < b.wide; j += rows) {
        rows = std::min<int64_t>({kTileRows, (TileSize(b.wide, j) + 3) / 4 * 4, b.wide - j});  // fours are turned best
        t.x = x + q + j;
        const int64_t pixel = b.first + q / b.line * b.wide + j;
        const int64_t at = (b.image * g.outputs + o) * g.pixels() + pixel;
        t.y = whole ? static_cast<float *>(g.y) + at : nullptr;
        AnyTile<false, T>(g.pairs, rows, t, n);
        if (whole) continue;
        if (g.nhwc) {
          for (int64_t r = 0; r < rows; ++r)
            Finish<true, T>(g, o, t.sums + r * kWidest, (b.image * g.pixels() + pixel + r) * g.outputs + o, n);
          continue;
        }
        Gather(static_cast<const float *>(t.sums), 1, kWidest, n, rows, turned, 16);
        for (int64_t c = 0; c < n; ++c) Finish<false, T>(g, o + c, turned + c * 16, at + c * g.pixels(), rows);
      }
  }
}

// What the pixels [p0, p1) of y see, pixel by pixel: dst[(pixel - p0) * line + c * taps + t]. x: of the group.
template <class T> void FillRows(const Conv &g, const T *x, int64_t p0, int64_t p1, float *dst) {
  const ConvCut &c = g.cut;
  const int64_t each = g.channels / g.groups, plane = g.h.in * g.w.in, taps = g.taps();
  if (g.flat()) {
    x += p0 * (g.nhwc ? g.channels : 1);
    return Gather(x, g.nhwc ? g.channels : 1, g.nhwc ? 1 : plane, p1 - p0, each, dst, c.line);
  }
  float *columns = dst + c.grain * c.line;
  for (int64_t from = 0; from < each; from += c.together) {
    const int64_t some = std::min(c.together, each - from);
    FillColumns(g, x + from * (g.nhwc ? 1 : plane), p0, p1, some, columns);
    Gather(static_cast<const float *>(columns), 1, c.stride, p1 - p0, some * taps, dst + from * taps, c.line);
  }
}

// Panels [p0, p1) of the product of these rows; pieces of a panel stay in L1 meanwhile.
template <class T> void PixelRows(const Conv &g, const Band &b, const float *x, int64_t p0, int64_t p1, float *sums) {
  const int64_t m = g.m(), k = g.k(), panels = (m + kPanel - 1) / kPanel, ld = g.cut.line;
  float *turned = sums + kBlockRows * kPanel;
  for (int64_t p = p0; p < p1; ++p) {
    const int64_t n = std::min(m - p * kPanel, kPanel), o = b.group * m + p * kPanel;
    const float *w = g.packed + (b.group * panels + p) * kPanel * k;
    for (int64_t from = 0, some; from < k; from += some) {
      some = std::min(g.cut.piece, k - from);
      const float *part = w + from * kPanel;
      for (int64_t row = 0, rows; row < b.count; row += rows) {
        rows = TileSize(b.count, row);
        MicroRows(rows, x + row * ld + from, ld, part, some, sums + row * kPanel, kPanel, from > 0,
                  AheadOf(part, part + some * kPanel, some, b.count, row, rows));
      }
    }
    if (g.nhwc) {
      for (int64_t r = 0; r < b.count; ++r)
        Finish<true, T>(g, o, sums + r * kPanel, (b.image * g.pixels() + b.first + r) * g.outputs + o, n);
      continue;
    }
    Gather(static_cast<const float *>(sums), 1, kPanel, n, b.count, turned, kBlockRows);
    for (int64_t c = 0; c < n; ++c)
      Finish<false, T>(g, o + c, turned + c * kBlockRows, (b.image * g.outputs + o + c) * g.pixels() + b.first,
                       b.count);
  }
}

// Pixels up to the first whose channels begin cache lines, where planes are whole lines: vectors of others would be of
// two lines each, for every output channel. Less than a band's grain. 0 where that matters little.
inline int64_t ToLine(const void *x, int64_t plane) {
  const auto at = reinterpret_cast<uintptr_t>(x) / sizeof(float);
  return !kByLines || plane % kConvLine ? 0 : int64_t(-at % uintptr_t(kConvLine));
}

// What a band sees; pairs of channels of NCHW are made of x itself where a row of theirs is one of x.
template <class T> HWY_INLINE void FillAny(const Conv &g, const T *x, int64_t first, int64_t last, float *dst) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<T, ::opgraft::bfloat16>) {
    const bool padded = g.cut.source == ConvSource::kPadded;
    const auto *halves = reinterpret_cast<const uint16_t *>(x);
    auto *words = reinterpret_cast<uint32_t *>(dst);
    if (g.pairs && !g.nhwc && padded) return FillChannelPairs(g, halves, first, last, words);
    if (g.pairs && !g.nhwc && g.flat()) return FillPixelPairs(g, halves, first, last, words);
  }
#endif
  FillBand(g, x, first, last, dst);
}

template <class T> void GeneralUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  HWY_ALIGN float sums[2 * kBlockRows * kPanel];
  static_assert(kTileRows * kWidest <= 2 * kBlockRows * kPanel);
  const ConvCut &c = g.cut;
  // In front of the scratch: which band it holds, and the taps.
  int64_t *held = reinterpret_cast<int64_t *>(scratch), *offsets = held + 1;
  float *filled = scratch + scratch_head(c);
  const bool masked = c.source == ConvSource::kMasked;
  for (int64_t t = 0; t < c.taps; ++t) {
    const int64_t k = t / g.w.kernel, l = t % g.w.kernel;
    offsets[t] = masked                            ? g.h.at(0, k) * g.w.in + g.w.at(0, l)
                 : c.source == ConvSource::kPadded ? ConvOffset(g, k, l)
                                                   : 0;
  }
  const int64_t panels = (g.m() + kPanel - 1) / kPanel, each = g.channels / g.groups, plane = g.h.in * g.w.in;
  for (int64_t unit = begin; unit < end; ++unit) {
    const ConvUnit u(g, unit);
    const int64_t band = u.band, group = u.group, image = u.image;
    int64_t first, last;
    band_of(c, band % c.bands, &first, &last);
    const T *x = static_cast<const T *>(g.x) +
                 (g.nhwc ? image * plane * g.channels + group * each : (image * g.channels + group * each) * plane);
    const bool padded = c.source == ConvSource::kPadded;
    const bool place = std::is_same_v<T, float> && c.source == ConvSource::kInPlace;
    const int64_t lead = place && c.pixel_lanes ? ToLine(x, plane) : 0;
    if (first > 0) first += lead;
    if (last < c.size) last += lead;
    Band b{image, group, last - first, last - first, last - first, first};
    if (padded) b = {image, group, c.line, g.w.out, (last - first) * c.line - (c.line - g.w.out), first * g.w.out};
    if (first == 0) b.lead = std::min(lead, last);
    ConvTile t{nullptr, nullptr, c.steps,    c.taps,  c.stride, offsets, nullptr,
               nullptr, sums,    g.pixels(), nullptr, nullptr,  nullptr, BoundsOf(g.activation)};
    const int64_t p0 = u.first_panel(c, panels), p1 = u.last_panel(c, panels);
    if (c.source == ConvSource::kRows) {
      if (*held != band) FillRows(g, x, first, last, filled);
      *held = band;
      PixelRows<T>(g, b, filled, p0, p1, sums);
      continue;
    }
    const float *source = filled;
    // Whole vectors are read: not in place where the last of them would reach past x.
    const int64_t widest = c.pixel_lanes ? PixelVectors(g) * kLanes : kWidest;
    const int64_t vectors = first + b.lead, whole = (last - vectors + widest - 1) / widest * widest;
    const int64_t behind = ((image * g.groups + group + 1) * each - 1) * plane + vectors + whole;
    if (masked || (place && behind <= g.batch * g.channels * plane)) {
      source = reinterpret_cast<const float *>(x) + first;
      t.stride = plane;
    } else if (*held != band) {
      FillAny(g, x, first, last, filled);
      *held = band;
    }
    if (c.pixel_lanes) PixelLanes<T>(g, b, t, source, p0, p1);
    else ChannelLanes<T>(g, b, t, source, p0, p1);
  }
  if (g.past) hwy::FlushStream();
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
