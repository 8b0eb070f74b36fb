// Per SIMD target: convolution with one input channel for few outputs, a sum over taps of vectors of pixels (NCHW) or
// of channels (NHWC).
#include "conv.h"

#if defined(OPGRAFT_CONV_DEPTHWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_DEPTHWISE_INL_H_
#undef OPGRAFT_CONV_DEPTHWISE_INL_H_
#else
#define OPGRAFT_CONV_DEPTHWISE_INL_H_
#endif

#include "fill-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// One row of y: sums over taps of from[offsets[t] + j], kTaps of them or, 0, `taps`. Reads whole vectors.
template <class T, int kTaps> HWY_INLINE void SumRow(const Conv &g, int64_t o, const float *from,
                                                     const int64_t *offsets, const float *weights, int64_t at) {
  const hn::ScalableTag<float> d;
  const ConvBounds bounds = BoundsOf(g.activation);
  const auto scale = hn::Set(d, g.scale[o]), shift = hn::Set(d, g.shift[o]);
  const int64_t taps = kTaps ? kTaps : g.taps(), n = g.w.out;
  T *y = static_cast<T *>(g.y) + at;
  const T *residual = g.residual ? static_cast<const T *>(g.residual) + at : nullptr;
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    auto a = hn::Zero(d), b = a;
#pragma GCC unroll 9
    for (int64_t t = 0; t < taps; ++t) {
      const auto w = hn::Set(d, weights[t]);
      a = hn::MulAdd(w, hn::LoadU(d, from + offsets[t] + j), a);
      b = hn::MulAdd(w, hn::LoadU(d, from + offsets[t] + j + kLanes), b);
    }
    a = hn::MulAdd(a, scale, shift), b = hn::MulAdd(b, scale, shift);
    if (residual) {
      a = hn::Add(a, LoadF32(d, residual + j));
      b = hn::Add(b, LoadF32(d, residual + j + kLanes));
    }
    StoreF32(Clamp(d, bounds, a), d, y + j);
    StoreF32(Clamp(d, bounds, b), d, y + j + kLanes);
  }
  for (; j < n; j += kLanes) {
    const int64_t some = n - j < kLanes ? n - j : kLanes;
    auto a = hn::Zero(d);
#pragma GCC unroll 9
    for (int64_t t = 0; t < taps; ++t) a = hn::MulAdd(hn::Set(d, weights[t]), hn::LoadU(d, from + offsets[t] + j), a);
    a = hn::MulAdd(a, scale, shift);
    if (some == kLanes) {
      if (residual) a = hn::Add(a, LoadF32(d, residual + j));
      StoreF32(Clamp(d, bounds, a), d, y + j);
    } else {
      if (residual) a = hn::Add(a, LoadSome(d, residual + j, some));
      StoreSome(Clamp(d, bounds, a), d, y + j, some);
    }
  }
}

// Units [begin, end) of (image, output channel, band of rows).
template <class T> void DepthwisePlanes(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  const int64_t taps = g.taps(), line = g.cut.line;
  int64_t *offsets = reinterpret_cast<int64_t *>(scratch);
  float *weights = scratch + 2 * taps, *buffer = weights + taps;
  for (int64_t t = 0; t < taps; ++t) offsets[t] = ConvOffset(g, t / g.w.kernel, t % g.w.kernel);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t o = unit / g.cut.bands % g.outputs, image = unit / g.cut.bands / g.outputs;
    int64_t i0, i1;
    band_of(g.cut, unit % g.cut.bands, &i0, &i1);
    const T *x = static_cast<const T *>(g.x) + (image * g.channels + o / g.m()) * g.h.in * g.w.in;
    for (int64_t t = 0; t < taps; ++t) weights[t] = float(static_cast<const T *>(g.weight)[o * taps + t]);
    FillPadded(g, x, i0, i1, 1, buffer);
    for (int64_t i = i0; i < i1; ++i) {
      const float *from = buffer + (i - i0) * line;
      const int64_t at = ((image * g.outputs + o) * g.h.out + i) * g.w.out;
      if (taps == 9) SumRow<T, 9>(g, o, from, offsets, weights, at);
      else SumRow<T, 0>(g, o, from, offsets, weights, at);
    }
  }
}

// kVectors vectors of channels from c on, of y's pixel whose window has the rows and columns [first, last) in x.
template <class T, int kVectors> HWY_INLINE void SumPixel(const Conv &g, const T *x, const float *weights,
                                                          const int64_t rows[2], const int64_t columns[2], int64_t i,
                                                          int64_t j, int64_t c, int64_t n, int64_t at) {
  const hn::ScalableTag<float> d;
  HWY_ALIGN float sums[kVectors * kLanes];
  GemmVec acc[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) acc[v] = hn::Zero(d);
  for (int64_t k = rows[0]; k < rows[1]; ++k)
    for (int64_t l = columns[0]; l < columns[1]; ++l) {
      const T *from = x + (g.h.at(i, k) * g.w.in + g.w.at(j, l)) * g.channels + c;
      const float *w = weights + (k * g.w.kernel + l) * g.channels + c;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        if (n >= (v + 1) * kLanes)
          acc[v] = hn::MulAdd(hn::LoadU(d, w + v * kLanes), LoadF32(d, from + v * kLanes), acc[v]);
        else
          acc[v] = hn::MulAdd(LoadSome(d, w + v * kLanes, n - v * kLanes),
                              LoadSome(d, from + v * kLanes, n - v * kLanes), acc[v]);
      }
    }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) hn::Store(acc[v], d, sums + v * kLanes);
  Finish<true, T>(g, c, sums, at + c, n);
}

// Units [begin, end) of (image, band of rows); weights [kH, kW, C] are in front of the scratch.
template <class T> void DepthwisePixels(const Conv &g, int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t image = unit / g.cut.bands;
    int64_t i0, i1, rows[2], columns[2];
    band_of(g.cut, unit % g.cut.bands, &i0, &i1);
    const T *x = static_cast<const T *>(g.x) + image * g.h.in * g.w.in * g.channels;
    for (int64_t i = i0; i < i1; ++i) {
      elements_in(g.h, i, rows, rows + 1);
      for (int64_t j = 0; j < g.w.out; ++j) {
        elements_in(g.w, j, columns, columns + 1);
        const int64_t at = ((image * g.h.out + i) * g.w.out + j) * g.outputs;
        for (int64_t c = 0, n; c < g.channels; c += n) {
          n = g.channels - c < 4 * kLanes ? g.channels - c : 4 * kLanes;
          if (n == 4 * kLanes) SumPixel<T, 4>(g, x, g.packed, rows, columns, i, j, c, n, at);
          else if (n >= kLanes) SumPixel<T, 1>(g, x, g.packed, rows, columns, i, j, c, n = kLanes, at);
          else SumPixel<T, 1>(g, x, g.packed, rows, columns, i, j, c, n, at);
        }
      }
    }
  }
}

template <class T> void DepthwiseUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  if (g.nhwc) DepthwisePixels<T>(g, begin, end);
  else DepthwisePlanes<T>(g, begin, end, scratch);
}

int64_t DepthwiseSlack() { return 2 * kLanes; }  // floats read behind a row

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
