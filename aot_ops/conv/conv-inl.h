// Convolution per SIMD target. A group is the product of its weights [m, k] and a matrix whose columns are what each
// output pixel sees (im2col), made panel by panel for the GEMM kernel. Depthwise runs over a padded copy of rows.
#include "conv.h"

#if defined(OPGRAFT_CONV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_INL_H_
#undef OPGRAFT_CONV_INL_H_
#else
#define OPGRAFT_CONV_INL_H_
#endif

#include "aot_ops/common/gemm-inl.h"
#include "aot_ops/common/window-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class D> HWY_INLINE hn::Vec<D> ConvActivate(D d, ConvActivation a, hn::Vec<D> v) {
  if (a == ConvActivation::kNone) return v;
  v = hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v);  // keeps NaN
  if (a == ConvActivation::kRelu) return v;
  return hn::IfThenElse(hn::Gt(v, hn::Set(d, 6.0f)), hn::Set(d, 6.0f), v);
}

// n sums of output channel o, as y's elements from `at` on.
template <class T> void Finish(const Conv &g, int64_t o, const float *sums, int64_t at, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto scale = hn::Set(d, g.scale ? g.scale[o] : 1.0f), shift = hn::Set(d, g.shift ? g.shift[o] : 0.0f);
  T *y = static_cast<T *>(g.y) + at;
  const T *residual = g.residual ? static_cast<const T *>(g.residual) + at : nullptr;
  for (int64_t i = 0; i < n; i += lanes) {
    const size_t some = size_t(n - i < lanes ? n - i : lanes);
    const bool whole = some == size_t(lanes);
    auto v = hn::LoadU(d, sums + i);
    if (g.scale) v = hn::MulAdd(v, scale, shift);
    else if (g.shift) v = hn::Add(v, shift);
    if (residual) v = hn::Add(v, whole ? LoadF32(d, residual + i) : LoadF32N(d, residual + i, some));
    v = ConvActivate(d, g.activation, v);
    if (whole) StoreF32(v, d, y + i);
    else StoreF32N(v, d, y + i, some);
  }
}

// The i of [0, n) for which window o + i's element k lies in x: [first, last).
HWY_INLINE void Inside(const Window &w, int64_t o, int64_t k, int64_t n, int64_t *first, int64_t *last) {
  const int64_t at = w.at(o, k);
  const int64_t begin = at < 0 ? (-at + w.stride - 1) / w.stride : 0;
  const int64_t end = at >= w.in ? 0 : (w.in - 1 - at) / w.stride + 1;
  *first = begin < n ? begin : n;
  *last = end < *first ? *first : end < n ? end : n;
}

// One panel: what the pixels from p0 on see of the channels at x. b[k][kPanel].
template <class T> void Columns(const Conv &g, const T *x, int64_t p0, float *b) {
  const int64_t width = g.pixels() - p0 < kPanel ? g.pixels() - p0 : kPanel, channels = g.channels / g.groups;
  const int64_t plane = g.h.in * g.w.in, taps = g.taps();
  for (int64_t column = 0, n; column < width; column += n) {  // the part of a row of y that lies in the panel
    const int64_t i = (p0 + column) / g.w.out, j = (p0 + column) % g.w.out;
    n = g.w.out - j < width - column ? g.w.out - j : width - column;
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t row = g.h.at(i, t / g.w.kernel), l = t % g.w.kernel;
      int64_t first = n, last = n;
      if (row >= 0 && row < g.h.in) Inside(g.w, j, l, n, &first, &last);
      const T *src = x + (first < last ? row * g.w.in + g.w.at(j + first, l) : 0);
      float *dst = b + t * kPanel + column;
      for (int64_t c = 0; c < channels; ++c, src += plane, dst += taps * kPanel) {
        for (int64_t k = 0; k < first; ++k) dst[k] = 0.0f;
        Spread(src, g.w.stride, last - first, dst + first);
        for (int64_t k = last; k < n; ++k) dst[k] = 0.0f;
      }
    }
  }
  for (int64_t k = 0; width < kPanel && k < g.k(); ++k)
    for (int64_t column = width; column < kPanel; ++column) b[k * kPanel + column] = 0.0f;
}

// Units [begin, end) of (image, group, block of output channels, panels of pixels); scratch: g.panels panels.
template <class T> void ConvUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  HWY_ALIGN float acc[kTileRows * kPanel];
  const int64_t k = g.k(), m = g.m(), pixels = g.pixels(), step = g.panels * kPanel;
  const int64_t across = (pixels + step - 1) / step, blocks = (m + g.block - 1) / g.block;
  const bool plain =
      std::is_same_v<T, float> && !g.scale && !g.shift && !g.residual && g.activation == ConvActivation::kNone;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t p0 = unit % across * step, m0 = unit / across % blocks * g.block;
    const int64_t group = unit / across / blocks % g.groups, image = unit / across / blocks / g.groups;
    const int64_t p1 = pixels < p0 + step ? pixels : p0 + step, m1 = m < m0 + g.block ? m : m0 + g.block;
    const T *x = static_cast<const T *>(g.x) + (image * g.channels + group * (g.channels / g.groups)) * g.h.in * g.w.in;
    for (int64_t p = p0; p < p1; p += kPanel) Columns(g, x, p, scratch + (p - p0) * k);
    for (int64_t row = m0, rows; row < m1; row += rows) {
      rows = TileSize(m1, row);
      const float *a = g.a + (group * m + row) * g.lda;
      const int64_t o = group * m + row;
      for (int64_t p = p0; p < p1; p += kPanel) {
        const float *b = scratch + (p - p0) * k;
        const int64_t width = p1 - p < kPanel ? p1 - p : kPanel, at = (image * g.outputs + o) * pixels + p;
        if (plain && width == kPanel) {
          MicroRows(rows, a, g.lda, b, k, static_cast<float *>(g.y) + at, pixels, false);
          continue;
        }
        MicroRows(rows, a, g.lda, b, k, acc, kPanel, false);
        for (int64_t r = 0; r < rows; ++r) Finish<T>(g, o + r, acc + r * kPanel, at + r * pixels, width);
      }
    }
  }
}

// Floats of scratch that a unit of depthwise needs: its rows, so that every tap reads whole vectors, and the taps.
int64_t DepthwiseFloats(const Conv &g) {
  const int64_t rows = (g.rows - 1) * g.h.stride + g.h.span();
  return rows * g.phases() * g.phase_length(kPanel) + 3 * g.taps() + 2;
}

// kVectors vectors of sum over t of weights[t] from[offsets[t] + ...].
template <int kVectors>
HWY_INLINE void SumTaps(const float *from, const int64_t *offsets, const float *weights, int64_t taps, float *acc) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = kPanel / 2;
  GemmVec sum[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (int64_t t = 0; t < taps; ++t) {
    const auto w = hn::Set(d, weights[t]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] = hn::MulAdd(w, hn::LoadU(d, from + offsets[t] + v * kLanes), sum[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) hn::Store(sum[v], d, acc + v * kLanes);
}

// Units [begin, end) of (image, output channel, g.rows rows).
template <class T> void DepthwiseUnits(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  constexpr int64_t kLanes = kPanel / 2, kWide = 4 * kLanes;
  HWY_ALIGN float acc[kWide];
  const int64_t length = g.phase_length(kPanel), line = g.phases() * length, taps = g.taps();
  const int64_t bands = (g.h.out + g.rows - 1) / g.rows;
  int64_t *offsets = reinterpret_cast<int64_t *>(scratch);
  float *weights = scratch + 2 * taps, *buffer = weights + taps;
  for (int64_t t = 0; t < taps; ++t) {
    const int64_t column = t % g.w.kernel * g.w.dilation;
    offsets[t] = t / g.w.kernel * g.h.dilation * line + column % g.w.stride * length + column / g.w.stride;
  }
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t i0 = unit % bands * g.rows, o = unit / bands % g.outputs, image = unit / bands / g.outputs;
    const int64_t i1 = g.h.out < i0 + g.rows ? g.h.out : i0 + g.rows;
    const T *x = static_cast<const T *>(g.x) + (image * g.channels + o / g.m()) * g.h.in * g.w.in;
    for (int64_t t = 0; t < taps; ++t) weights[t] = float(static_cast<const T *>(g.weight)[o * taps + t]);
    for (int64_t r = 0; r < (i1 - i0 - 1) * g.h.stride + g.h.span(); ++r) {
      const int64_t row = g.h.at(i0, 0) + r;
      for (int64_t phase = 0; phase < g.phases(); ++phase) {
        float *dst = buffer + r * line + phase * length;
        int64_t first = length, last = length;
        Window w = g.w;  // windows of one element, from column `phase` of the padded row on
        w.before = g.w.before - phase;
        if (row >= 0 && row < g.h.in) Inside(w, 0, 0, length, &first, &last);
        for (int64_t k = 0; k < first; ++k) dst[k] = 0.0f;
        if (first < last) Spread(x + row * g.w.in + w.at(first, 0), g.w.stride, last - first, dst + first);
        for (int64_t k = last; k < length; ++k) dst[k] = 0.0f;
      }
    }
    for (int64_t i = i0; i < i1; ++i)
      for (int64_t j = 0, n; j < g.w.out; j += n) {
        const float *from = buffer + (i - i0) * g.h.stride * line + j;
        n = g.w.out - j < kWide ? g.w.out - j : kWide;
        if (n > 2 * kLanes) SumTaps<4>(from, offsets, weights, taps, acc);
        else if (n > kLanes) SumTaps<2>(from, offsets, weights, taps, acc);
        else SumTaps<1>(from, offsets, weights, taps, acc);
        Finish<T>(g, o, acc, (image * g.outputs + o) * g.pixels() + i * g.w.out + j, n);
      }
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
