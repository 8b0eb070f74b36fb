// Per SIMD target: what a band of y sees of x as float32, in a thread's scratch; and how results go to y.
#include <type_traits>

#include "conv.h"

#if defined(OPGRAFT_CONV_FILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_FILL_INL_H_
#undef OPGRAFT_CONV_FILL_INL_H_
#else
#define OPGRAFT_CONV_FILL_INL_H_
#endif

#include "aot_ops/common/gemm-inl.h"
#include "aot_ops/common/map-inl.h"
#include "aot_ops/common/window-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

constexpr int64_t kLanes = kPanel / 2;

// run(rows as a constant), of a tile's rows, 1 to kTileRows.
template <int R = kTileRows, class Run> HWY_INLINE void OfRows(int64_t rows, const Run &run) {
  if (rows == R) return run(std::integral_constant<int, R>());
  if constexpr (R > 1) OfRows<R - 1>(rows, run);
}

// The i of [0, n) for which window o + i's element k lies in x: [first, last).
HWY_INLINE void Inside(const Window &w, int64_t o, int64_t k, int64_t n, int64_t *first, int64_t *last) {
  const int64_t at = w.at(o, k);
  const int64_t begin = at < 0 ? (-at + w.stride - 1) / w.stride : 0;
  const int64_t end = at >= w.in ? 0 : (w.in - 1 - at) / w.stride + 1;
  *first = begin < n ? begin : n;
  *last = end < *first ? *first : end < n ? end : n;
}

HWY_INLINE void Zeros(float *dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = 0.0f;
}

// Zeros before `first` and from `last` on, of n; what lies between may become 0 as well.
HWY_INLINE void ZeroEnds(float *dst, int64_t first, int64_t last, int64_t n) {
  if (n >= kLanes && first <= kLanes && n - last <= kLanes) {  // no calls of memset for a few bytes
    const hn::ScalableTag<float> d;
    hn::StoreU(hn::Zero(d), d, dst);
    hn::StoreU(hn::Zero(d), d, dst + n - kLanes);
  } else {
    Zeros(dst, first);
    Zeros(dst + last, n - last);
  }
}

// Vectors of pixels reach behind the last one by less than so much. Zeros are there: what memory happens to hold is
// denormal at times, and a product with such a number takes a hundred cycles on Intel's cores.
constexpr int64_t kReach = 2 * kLanes;
// Zeros behind the last of n floats, up to `end`.
HWY_INLINE void ZeroReach(float *dst, int64_t n, int64_t end) {
  const hn::ScalableTag<float> d;
  if (n < end) StoreF32N(hn::Zero(d), d, dst + n, size_t(std::min(end - n, kLanes)));
  if (n += kLanes; n < end) StoreF32N(hn::Zero(d), d, dst + n, size_t(std::min(end - n, kLanes)));
}

// What lies in x of n elements a stride apart, channel by channel: dst[c * ld + i] = x's channel c, row `row`, column
// w.at(i, 0), for c < channels, or 0 outside of x.
template <class T> void FillRow(const Conv &g, const T *x, const Window &w, int64_t row, int64_t n, int64_t channels,
                                float *dst, int64_t ld) {
  int64_t first = n, last = n;
  if (row >= 0 && row < g.h.in) Inside(w, 0, 0, n, &first, &last);
  const int64_t at = first < last ? row * g.w.in + w.at(first, 0) : 0, plane = g.h.in * g.w.in;
  if (g.nhwc && first < last)
    Gather(x + at * g.channels, 1, g.channels * w.stride, channels, last - first, dst + first, ld);
  for (int64_t c = 0; c < channels; ++c, dst += ld) {
    if (!g.nhwc) {
      ZeroEnds(dst, first, last, n);
      Spread(x + c * plane + at, w.stride, last - first, dst + first);
      continue;
    }
    Zeros(dst, first);
    Zeros(dst + last, n - last);
  }
}

// A row of x with its padding as two: every second element of it from the first on, and from the second on.
template <class T>
HWY_INLINE void FillPairs(const T *x, int64_t in, int64_t before, int64_t line, float *even, float *odd) {
  const hn::ScalableTag<float> d;
  // [first, last): pairs that lie in x. The one in front of them may begin with padding, the one behind end with it.
  const int64_t first = (before + 1) / 2 < line ? (before + 1) / 2 : line;
  const int64_t last = (in + before) / 2 < line ? (in + before) / 2 : line, n = last - first;
  const T *from = x + 2 * first - before;
  ZeroEnds(even, first, last, line);
  ZeroEnds(odd, first, last, line);
  if (before % 2 && before < 2 * line) odd[before / 2] = float(x[0]);
  auto pair = [&](int64_t i) HWY_ATTR {
    const auto v = LoadPairs(d, from + 2 * i);
    hn::StoreU(v.even, d, even + first + i);
    hn::StoreU(v.odd, d, odd + first + i);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) pair(i);
  if (i < n && n >= kLanes) pair(n - kLanes);  // lies over the one before
  for (; n < kLanes && i < n; ++i) even[first + i] = float(from[2 * i]), odd[first + i] = float(from[2 * i + 1]);
  if ((in + before) % 2 && last < line) even[last] = float(x[in - 1]);
}

// Rows [i0, i1) of y: the rows of x that they see with their padding, by phase. Element (k, l) of the window of y's
// pixel (i, j) then lies ConvOffset(k, l) behind (i - i0) * line + j. Writes kReach floats behind the last channel.
template <class T> void FillPadded(const Conv &g, const T *x, int64_t i0, int64_t i1, int64_t channels, float *dst) {
  const ConvCut &c = g.cut;
  const int64_t sh = g.h.stride, rows = i1 - i0 + (g.h.span() - 1) / sh, plane = g.h.in * g.w.in;
  const bool pairs = !g.nhwc && g.w.stride == 2 && g.phases() == 2;
  for (int64_t q = 0; q < (pairs ? 1 : g.phases()); ++q) {
    Window w = g.w;  // windows of one element, from column q of the padded row on
    w.before = g.w.before - q;
    int64_t first, last;
    Inside(w, 0, 0, c.line, &first, &last);
    // NCHW: channel by channel, as x lies in memory; the same row of the next one is fetched ahead.
    for (int64_t channel = 0; channel < (g.nhwc ? 1 : channels); ++channel)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t p = 0; p < g.row_phases(); ++p) {
          float *to = dst + channel * c.stride + (p * g.phases() + q) * c.plane + r * c.line;
          const int64_t row = g.h.at(i0, 0) + r * sh + p;
          if (g.nhwc) {
            FillRow(g, x, w, row, c.line, channels, to, c.stride);
            continue;
          }
          if (row < 0 || row >= g.h.in || (pairs ? g.w.in == 0 : first == last)) {
            Zeros(to, c.line);
            if (pairs) Zeros(to + c.plane, c.line);
            continue;
          }
          if (pairs) {
            FillPairs(x + channel * plane + row * g.w.in, g.w.in, g.w.before, c.line, to, to + c.plane);
            continue;
          }
          const T *from = x + channel * plane + row * g.w.in + w.at(first, 0);
          const int64_t n = last - first;
          for (int64_t k = 0; channels > 1 && w.stride == 1 && k < n; k += 64 / int64_t(sizeof(T)))
            __builtin_prefetch(from + plane + k);
          ZeroEnds(to, first, last, c.line);
          Spread(from, w.stride, n, to + first);
        }
  }
  const int64_t planes = g.row_phases() * g.phases(), used = rows * c.line;
  for (int64_t channel = 0; channel < channels; ++channel, dst += c.stride) {
    for (int64_t p = 0; p + 1 < planes; ++p) ZeroReach(dst + p * c.plane, used, c.plane);
    const int64_t end = channel + 1 < channels ? c.stride : c.stride + kReach;
    ZeroReach(dst, (planes - 1) * c.plane + used, end);
  }
}

HWY_INLINE int64_t ConvOffset(const Conv &g, int64_t k, int64_t l) {
  const int64_t row = k * g.h.dilation, column = l * g.w.dilation;
  return (row % g.h.stride * g.phases() + column % g.w.stride) * g.cut.plane + row / g.h.stride * g.cut.line +
         column / g.w.stride;
}

// What the pixels [p0, p1) of y see: dst[(c * taps + t) * stride + pixel - p0].
template <class T> void FillColumns(const Conv &g, const T *x, int64_t p0, int64_t p1, int64_t channels, float *dst) {
  const int64_t taps = g.taps(), stride = g.cut.stride;
  for (int64_t p = p0, n; p < p1; p += n) {  // the part of a row of y that lies in the band
    const int64_t i = p / g.w.out, j = p % g.w.out;
    n = g.w.out - j < p1 - p ? g.w.out - j : p1 - p;
    for (int64_t t = 0; t < taps; ++t) {
      Window w = g.w;
      w.before = -g.w.at(j, t % g.w.kernel);
      FillRow(g, x, w, g.h.at(i, t / g.w.kernel), n, channels, dst + t * stride + p - p0, taps * stride);
    }
  }
}

// What a band sees of a group's channels: rows [first, last) of y with their padding, or these pixels.
template <class T> void FillBand(const Conv &g, const T *x, int64_t first, int64_t last, float *dst) {
  const bool padded = g.cut.source == ConvSource::kPadded;
  const int64_t each = g.channels / g.groups, next = g.nhwc ? 1 : g.h.in * g.w.in;
  const auto fill = [&](int64_t from, int64_t channels, float *to) {
    if (padded) return FillPadded(g, x + from * next, first, last, channels, to);
    FillColumns(g, x + from * next, first, last, channels, to);
    if ((last - first) % (2 * kReach) == 0) return;  // whole tiles
    const int64_t steps = channels * g.taps(), stride = g.cut.stride;
    for (int64_t i = 0; i + 1 < steps; ++i) ZeroReach(to + i * stride, last - first, stride);
    ZeroReach(to + (steps - 1) * stride, last - first, stride + kReach);
  };
  if (!g.pairs) return fill(0, each, dst);
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const int64_t wide = g.cut.stride * (padded ? 1 : g.taps());  // a channel's, whole vectors
  float *two = dst + g.depth() * wide;
  for (int64_t c = 0; c < each; c += 2, dst += wide) {
    fill(c, std::min<int64_t>(2, each - c), two);
    if (c + 1 == each) Zeros(two + wide, wide);
    for (int64_t i = 0; i < wide; i += kLanes) {  // a widened bfloat16 is the upper half of its word
      const auto low = hn::ShiftRight<16>(hn::BitCast(du, hn::LoadU(d, two + i)));
      const auto high = hn::And(hn::BitCast(du, hn::LoadU(d, two + wide + i)), hn::Set(du, 0xffff0000u));
      hn::StoreU(hn::BitCast(d, hn::Or(low, high)), d, dst + i);
    }
  }
}

// ReLU and ReLU6 as bounds; the instructions give their second operand where one is a NaN, so that it stays.
struct ConvBounds {
  float low, high;
};
HWY_INLINE ConvBounds BoundsOf(ConvActivation a) {
  return {a == ConvActivation::kNone ? -HUGE_VALF : 0.0f, a == ConvActivation::kRelu6 ? 6.0f : HUGE_VALF};
}
template <class D, class V> HWY_INLINE V Clamp(D d, ConvBounds b, V v) {
  return hn::Min(hn::Set(d, b.high), hn::Max(hn::Set(d, b.low), v));
}

// n neighbours of y from `at` on, of their sums. Of one channel (in which case scale and shift are one number each), or
// along the channels.
template <bool kChannels, class T>
HWY_INLINE void Finish(const Conv &g, int64_t o, const float *sums, int64_t at, int64_t n) {
  const hn::ScalableTag<float> d;
  const ConvBounds bounds = BoundsOf(g.activation);
  const auto one = hn::Set(d, g.scale[o]), other = hn::Set(d, g.shift[o]);
  T *y = static_cast<T *>(g.y) + at;
  const T *residual = g.residual ? static_cast<const T *>(g.residual) + at : nullptr;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto scale = kChannels ? hn::LoadU(d, g.scale + o + i) : one;
    const auto shift = kChannels ? hn::LoadU(d, g.shift + o + i) : other;
    auto v = hn::MulAdd(hn::LoadU(d, sums + i), scale, shift);
    if (residual) v = hn::Add(v, LoadF32(d, residual + i));
    StoreF32(Clamp(d, bounds, v), d, y + i);
  }
  if (const int64_t rest = n - i) {
    const auto scale = kChannels ? LoadF32N(d, g.scale + o + i, size_t(rest)) : one;
    const auto shift = kChannels ? LoadF32N(d, g.shift + o + i, size_t(rest)) : other;
    auto v = hn::MulAdd(LoadF32N(d, sums + i, size_t(rest)), scale, shift);
    if (residual) v = hn::Add(v, LoadF32N(d, residual + i, size_t(rest)));
    StoreF32N(Clamp(d, bounds, v), d, y + i, size_t(rest));
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
