// What a convolution consists of, shared by the SIMD kernels (conv-inl.h) and the operators (conv.cc).
#pragma once

#include "aot_ops/common/window.h"

namespace opgraft {

enum class ConvActivation : int32_t { kNone, kRelu, kRelu6 };

// y[n, o, i, j] = act(scale[o] sum(weight[o, c, k, l] x[n, group's c, h.at(i, k), w.at(j, l)]) + shift[o] + residual).
struct Conv {
  int32_t dtype;
  const void *x, *weight, *residual;  // residual: or null; may be y
  void *y;
  int64_t batch, channels, outputs, groups;  // channels of x and of y
  Window h, w;
  ConvActivation activation = ConvActivation::kNone;
  const float *scale = nullptr, *shift = nullptr;  // by output channel, or null
  // As a product of matrices: the weight's rows as float32, `lda` apart; pixels are columns.
  const float *a = nullptr;
  int64_t lda = 0;
  int64_t panels = 1, block = 0;  // of a unit: panels of pixels and output channels
  int64_t rows = 1;               // of a unit of depthwise: rows of y

  int64_t pixels() const { return h.out * w.out; }
  int64_t taps() const { return h.kernel * w.kernel; }
  int64_t k() const { return channels / groups * taps(); }
  int64_t m() const { return outputs / groups; }
  // Depthwise holds rows of x with their padding, a vector for every phase: columns that lie a stride apart.
  int64_t phases() const { return std::min(w.stride, w.span()); }
  int64_t phase_length(int64_t panel) const { return w.out + (w.span() - 1) / w.stride + 2 * panel; }
  // One input channel for few outputs: a product of matrices would have next to no rows. In double: no overflow.
  bool depthwise() const {
    constexpr double kMost = 1 << 24;
    return channels == groups && m() < 4 && double(h.span()) * double(phases()) * double(phase_length(64)) < kMost;
  }
};

}  // namespace opgraft
