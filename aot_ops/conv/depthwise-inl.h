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

// n elements of y from `at` on, at most a vector, of their sums.
template <class T, class D>
HWY_INLINE void Put(const Conv &g, D d, hn::Vec<D> sums, hn::Vec<D> scale, hn::Vec<D> shift, int64_t at, int64_t n) {
  const ConvBounds bounds = BoundsOf(g.activation);
  T *y = static_cast<T *>(g.y) + at;
  const T *residual = g.residual ? static_cast<const T *>(g.residual) + at : nullptr;
  auto v = hn::MulAdd(sums, scale, shift);
  if (n >= kLanes) {
    if (residual) v = hn::Add(v, LoadF32(d, residual));
    return StoreF32(Clamp(d, bounds, v), d, y);
  }
  if (residual) v = hn::Add(v, LoadSome(d, residual, n));
  StoreSome(Clamp(d, bounds, v), d, y, n);
}

// kRows rows of y: sums over taps of from[offsets[t] + j]. kKernel: 3 x 3, of neighbours, whose stride is 1 or 2, in
// which case the rows share what they read, 9 taps, or any number. Reads whole vectors.
enum class DepthwiseKernel { kNeighbours = 1, kNeighboursOfTwo = 2, kNine, kAny };
template <class T, DepthwiseKernel kKernel, int kRows>
HWY_INLINE void SumRows(const Conv &g, int64_t o, const float *from, const int64_t *offsets, const float *weights,
                        int64_t at) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale[o]), shift = hn::Set(d, g.shift[o]);
  const int64_t taps = g.taps(), n = g.w.out, line = g.cut.line;
  GemmVec w[9], sums[kRows];
  if constexpr (kKernel != DepthwiseKernel::kAny) {
#pragma GCC unroll 9
    for (int t = 0; t < 9; ++t) w[t] = hn::Set(d, weights[t]);
  }
  for (int64_t j = 0; j < n; j += kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[r] = hn::Zero(d);
    if constexpr (kKernel <= DepthwiseKernel::kNeighboursOfTwo) {
      constexpr int kStride = int(kKernel);
#pragma GCC unroll 7
      for (int k = 0; k < kStride * (kRows - 1) + 3; ++k) {
        const float *row = from + k % kStride * kStride * g.cut.plane + k / kStride * line + j;
#pragma GCC unroll 3
        for (int l = 0; l < 3; ++l) {
          const auto v = hn::LoadU(d, row + l % kStride * g.cut.plane + l / kStride);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
            if (k >= kStride * r && k < kStride * r + 3) sums[r] = hn::MulAdd(w[3 * (k - kStride * r) + l], v, sums[r]);
        }
      }
    } else if constexpr (kKernel == DepthwiseKernel::kNine) {
#pragma GCC unroll 9
      for (int t = 0; t < 9; ++t) sums[0] = hn::MulAdd(w[t], hn::LoadU(d, from + offsets[t] + j), sums[0]);
    } else {
      for (int64_t t = 0; t < taps; ++t)
        sums[0] = hn::MulAdd(hn::Set(d, weights[t]), hn::LoadU(d, from + offsets[t] + j), sums[0]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) Put<T>(g, d, sums[r], scale, shift, at + r * n + j, n - j);
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
    using Kernel = DepthwiseKernel;
    const bool near = taps == 9 && g.h.span() == 3 && g.w.span() == 3 && g.h.stride == g.w.stride && g.w.stride <= 2;
    for (int64_t i = i0, rows; i < i1; i += rows) {
      const float *from = buffer + (i - i0) * line;
      const int64_t at = ((image * g.outputs + o) * g.h.out + i) * g.w.out;
      rows = near && i1 - i >= 3 ? 3 : 1;
      const bool three = rows == 3, two = g.w.stride == 2;
      if (three && two) SumRows<T, Kernel::kNeighboursOfTwo, 3>(g, o, from, offsets, weights, at);
      else if (three) SumRows<T, Kernel::kNeighbours, 3>(g, o, from, offsets, weights, at);
      else if (near && !two) SumRows<T, Kernel::kNeighbours, 1>(g, o, from, offsets, weights, at);
      else if (taps == 9) SumRows<T, Kernel::kNine, 1>(g, o, from, offsets, weights, at);
      else SumRows<T, Kernel::kAny, 1>(g, o, from, offsets, weights, at);
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
