// Per SIMD target: what a band of y sees of x in bfloat16 as words of two channels or neighbours, in a thread's
// scratch, for AMX's tiles and for products of pairs; and how results of these go to y.
#include "conv.h"

#if defined(OPGRAFT_CONV_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_WORDS_INL_H_
#undef OPGRAFT_CONV_WORDS_INL_H_
#else
#define OPGRAFT_CONV_WORDS_INL_H_
#endif

#include "fill-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
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

// The pixels [first, last) of x as pairs of channels; what lies behind them, up to whole vectors, may be anything.
HWY_INLINE void FillPixelPairs(const Conv &g, const uint16_t *x, int64_t first, int64_t last, uint32_t *dst) {
  const int64_t each = g.channels / g.groups, plane = g.h.in * g.w.in;
  for (int64_t c = 0; c < each; c += 2, dst += g.cut.stride) {
    const uint16_t *from = x + c * plane + first;
    PairSpread(from, c + 1 < each ? from + plane : nullptr, 1, last - first, dst);
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

// dst[i] = from[i * stride]; reads nothing behind the last of them.
HWY_INLINE void SpreadHalves(const uint16_t *from, int64_t stride, int64_t n, uint16_t *dst) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d16;
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::LoadU(d16, from + i), d16, dst + i);
    if (i < n) StoreBitsN(LoadBitsN(d16, from + i, size_t(n - i)), d16, dst + i, size_t(n - i));
  } else if (stride == 2) {  // the lower halves of words, of which the last may end behind x
    for (; i + kLanes < n; i += kLanes)
      hn::StoreU(hn::TruncateTo(d16, hn::LoadU(d32, reinterpret_cast<const uint32_t *>(from + 2 * i))), d16, dst + i);
    const auto rest = size_t(n - 1 - i);
    const auto words = hn::MaskedLoad(hn::FirstN(d32, rest), d32, reinterpret_cast<const uint32_t *>(from + 2 * i));
    StoreBitsN(hn::TruncateTo(d16, words), d16, dst + i, rest);
    dst[n - 1] = from[2 * (n - 1)];
  } else {
    for (; i < n; ++i) dst[i] = from[i * stride];
  }
}

// What the pixels [p0, p1) of y see, NHWC: a row of steps() pairs for each, `ld` numbers apart.
HWY_INLINE void FillRowsOfWords(const Conv &g, const uint16_t *x, int64_t p0, int64_t p1, uint16_t *dst, int64_t ld) {
  const int64_t each = g.channels / g.groups, wide = g.w.kernel * each;
  const bool together = g.groups == 1 && g.w.dilation == 1;  // elements of a window's row lie side by side
  for (int64_t p = p0; p < p1; ++p, dst += ld) {
    const int64_t i = p / g.w.out, j = p % g.w.out;
    int64_t first, last;
    elements_in(g.w, j, &first, &last);
    uint16_t *to = dst;
    for (int64_t k = 0; k < g.h.kernel; ++k, to += wide) {
      const int64_t row = g.h.at(i, k);
      if (row < 0 || row >= g.h.in || first >= last) {
        std::fill_n(to, wide, uint16_t(0));
        continue;
      }
      const uint16_t *from = x + (row * g.w.in + g.w.at(j, first)) * g.channels;
      std::fill_n(to, first * each, uint16_t(0));
      if (together) SpreadHalves(from, 1, (last - first) * each, to + first * each);
      else
        for (int64_t l = first; l < last; ++l)
          SpreadHalves(from + (l - first) * g.w.dilation * g.channels, 1, each, to + l * each);
      std::fill_n(to + last * each, wide - last * each, uint16_t(0));
    }
    std::fill_n(to, 2 * g.steps() - g.k(), uint16_t(0));
  }
}
// Whether x is such rows itself, of which not many meet in one set of L1.
HWY_INLINE bool WordsInPlace(const Conv &g) {
  return g.nhwc && g.flat() && 2 * g.steps() == g.k() && g.channels % 1024;
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
#endif

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
