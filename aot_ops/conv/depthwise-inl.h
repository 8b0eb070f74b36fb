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
  if (residual) v = hn::Add(v, LoadF32N(d, residual, size_t(n)));
  StoreF32N(Clamp(d, bounds, v), d, y, size_t(n));
}

// kRows rows of y: sums over taps of from[offsets[t] + j]. kKernel: 3 x 3, of neighbours, in which case the rows share
// what they read, 9 taps, or any number. Reads whole vectors.
enum class DepthwiseKernel { kNeighbours, kNine, kAny };
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
    if constexpr (kKernel == DepthwiseKernel::kNeighbours) {
#pragma GCC unroll 6
      for (int k = 0; k < kRows + 2; ++k) {
#pragma GCC unroll 3
        for (int l = 0; l < 3; ++l) {
          const auto v = hn::LoadU(d, from + k * line + l + j);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r)
            if (k >= r && k < r + 3) sums[r] = hn::MulAdd(w[3 * (k - r) + l], v, sums[r]);
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

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
constexpr bool kMaskedLoads = true;  // that read no element which is masked out
#else
constexpr bool kMaskedLoads = false;
#endif

// kRows rows of y of a 3 x 3 kernel, from the rows of x where they lie: rows[k] is x's row, or zeros, that the first
// of them sees with its k-th row of weights. What lies left and right of a row is masked out.
template <int kStride, int kRows>
HWY_INLINE void SumInPlace(const Conv &g, int64_t o, const float *const *rows, const float *weights, int64_t at) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale[o]), shift = hn::Set(d, g.shift[o]);
  const int64_t n = g.w.out, in = g.w.in;
  // What is read from the first column that a vector of pixels sees; of a stride of 2, pairs of vectors.
  constexpr int kLoads = kStride + 2;
  constexpr int64_t kFrom[] = {0, kStride == 1 ? 1 : kLanes, 2, kLanes + 2};
  GemmVec w[9];
#pragma GCC unroll 9
  for (int t = 0; t < 9; ++t) w[t] = hn::Set(d, weights[t]);
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t column = j * kStride - g.w.before;
    GemmVec sums[kRows];
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) sums[r] = hn::Zero(d);
    auto add = [&](auto load) HWY_ATTR {
#pragma GCC unroll 7
      for (int k = 0; k < kStride * (kRows - 1) + 3; ++k) {
        GemmVec v[4];
#pragma GCC unroll 4
        for (int i = 0; i < kLoads; ++i) v[i] = load(rows[k] + column, i);
        if constexpr (kStride == 2) {
          const auto second = hn::ConcatOdd(d, v[1], v[0]);
          v[0] = hn::ConcatEven(d, v[1], v[0]), v[1] = second, v[2] = hn::ConcatEven(d, v[3], v[2]);
        }
#pragma GCC unroll 3
        for (int l = 0; l < 3; ++l) {
#pragma GCC unroll 3
          for (int r = 0; r < kRows; ++r)
            if (k >= kStride * r && k < kStride * r + 3)
              sums[r] = hn::MulAdd(w[3 * (k - kStride * r) + l], v[l], sums[r]);
        }
      }
    };
    if (column >= 0 && column + kStride * kLanes + 2 <= in) {
      add([&](const float *p, int i) HWY_ATTR { return hn::LoadU(d, p + kFrom[i]); });
    } else {
      hn::Mask<decltype(d)> inside[4];
#pragma GCC unroll 4
      for (int i = 0; i < kLoads; ++i) {
        const int64_t first = -(column + kFrom[i]), last = in + first;  // lanes that lie in the row
        inside[i] =
            hn::AndNot(hn::FirstN(d, size_t(first < 0 ? 0 : first)), hn::FirstN(d, size_t(last < 0 ? 0 : last)));
      }
      add([&](const float *p, int i) HWY_ATTR { return hn::MaskedLoad(inside[i], d, p + kFrom[i]); });
    }
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) Put<float>(g, d, sums[r], scale, shift, at + r * n + j, n - j);
  }
}

// Rows [i0, i1) of one output channel. zeros: a row of x.
template <int kStride> HWY_INLINE void PlaneInPlace(const Conv &g, const float *x, int64_t o, int64_t i0, int64_t i1,
                                                    const float *weights, const float *zeros, int64_t at) {
  const float *seen[2 * kStride + 3];
  for (int64_t i = i0, rows; i < i1; i += rows) {
    rows = i1 - i >= 3 ? 3 : 1;
    for (int64_t k = 0; k < kStride * (rows - 1) + 3; ++k) {
      const int64_t row = g.h.at(i, k);
      seen[k] = row >= 0 && row < g.h.in ? x + row * g.w.in : zeros;
    }
    if (rows == 3) SumInPlace<kStride, 3>(g, o, seen, weights, at + i * g.w.out);
    else SumInPlace<kStride, 1>(g, o, seen, weights, at + i * g.w.out);
  }
}

// Units [begin, end) of (image, output channel, band of rows).
template <class T> void DepthwisePlanes(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  const int64_t taps = g.taps(), line = g.cut.line;
  int64_t *offsets = reinterpret_cast<int64_t *>(scratch);
  float *weights = scratch + 2 * taps, *buffer = weights + taps;
  for (int64_t t = 0; t < taps; ++t) offsets[t] = ConvOffset(g, t / g.w.kernel, t % g.w.kernel);
  const bool small = g.h.kernel == 3 && g.w.kernel == 3 && g.h.dilation == 1 && g.w.dilation == 1 &&
                     g.h.stride == g.w.stride && g.w.stride <= 2;
  const bool in_place = kMaskedLoads && std::is_same_v<T, float> && small;
  if (in_place) Zeros(buffer, g.w.in);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t o = unit / g.cut.bands % g.outputs, image = unit / g.cut.bands / g.outputs;
    int64_t i0, i1;
    band_of(g.cut, unit % g.cut.bands, &i0, &i1);
    const T *x = static_cast<const T *>(g.x) + (image * g.channels + o / g.m()) * g.h.in * g.w.in;
    for (int64_t t = 0; t < taps; ++t) weights[t] = float(static_cast<const T *>(g.weight)[o * taps + t]);
    if constexpr (kMaskedLoads && std::is_same_v<T, float>) {
      if (in_place) {
        const int64_t at = (image * g.outputs + o) * g.pixels();
        if (g.w.stride == 1) PlaneInPlace<1>(g, x, o, i0, i1, weights, buffer, at);
        else PlaneInPlace<2>(g, x, o, i0, i1, weights, buffer, at);
        continue;
      }
    }
    FillPadded(g, x, i0, i1, 1, buffer);
    using Kernel = DepthwiseKernel;
    const bool near = small && g.w.stride == 1;
    for (int64_t i = i0, rows; i < i1; i += rows) {
      const float *from = buffer + (i - i0) * line;
      const int64_t at = ((image * g.outputs + o) * g.h.out + i) * g.w.out;
      rows = near && i1 - i >= 3 ? 3 : 1;
      if (rows == 3) SumRows<T, Kernel::kNeighbours, 3>(g, o, from, offsets, weights, at);
      else if (near) SumRows<T, Kernel::kNeighbours, 1>(g, o, from, offsets, weights, at);
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
          acc[v] = hn::MulAdd(LoadF32N(d, w + v * kLanes, size_t(n - v * kLanes)),
                              LoadF32N(d, from + v * kLanes, size_t(n - v * kLanes)), acc[v]);
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

int64_t DepthwiseSlack() { return kReach; }

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
