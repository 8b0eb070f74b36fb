// LayerNorm2d: y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over the channels of [N, C, ...]. Half types
// compute in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "aot_ops/common/norm.h"
#include "aot_ops/common/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layernorm2d.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/norm-inl.h"
// clang-format on

#ifndef OPGRAFT_LAYER_NORM_2D_ONCE_
#define OPGRAFT_LAYER_NORM_2D_ONCE_
namespace opgraft {
// Columns of n channels, `inner` apart.
struct Columns {
  const void *x;
  void *y;
  const float *gamma, *beta;  // may be null
  int64_t n, inner, count;
  double epsilon;
  // Where column r begins.
  int64_t begin(int64_t r) const { return r / inner * n * inner + r % inner; }
};

// One column as plain as the formula, in double: the twin, and what does not fit float32.
template <class T> void normalise_column(const Columns &g, const T *x, T *y) {
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < g.n; ++c) mean += double(float(x[c * g.inner])) / double(g.n);
  for (int64_t c = 0; c < g.n; ++c) {
    const double d = double(float(x[c * g.inner])) - mean;
    variance += d * d / double(g.n);
  }
  const double scale = 1 / std::sqrt(variance + g.epsilon);
  for (int64_t c = 0; c < g.n; ++c) {
    const double v = (double(float(x[c * g.inner])) - mean) * scale;
    y[c * g.inner] = T(float(v * (g.gamma ? double(g.gamma[c]) : 1.0) + (g.beta ? double(g.beta[c]) : 0.0)));
  }
}
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

inline constexpr int64_t kTogether = 32;  // channels that are added up before they join the sum: it rounds less often
inline constexpr int64_t kKept = 16384;   // floats of the columns at work, in L1 and a little more

// `width` neighbouring columns, in kVectors vectors; kWhole: which they fill. Where they are no more than kKept floats
// they are read from x once: a stride that is a power of two leaves them few places in the caches.
template <int kVectors, bool kWhole, class T>
HWY_INLINE void Normalise(const Columns &g, const T *x, T *y, int64_t width) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = int64_t(hn::Lanes(d)), n = g.n, inner = g.inner;
  HWY_ALIGN float kept[kKept];
  const bool keeps = n * kVectors * lanes <= kKept;
  size_t filled[kVectors];
  for (int v = 0; v < kVectors; ++v) filled[v] = size_t(std::clamp<int64_t>(width - v * lanes, 0, lanes));
  const auto read = [&](int64_t c, int v) HWY_ATTR {
    if constexpr (kWhole) return LoadF32(d, x + c * inner + v * lanes);
    else if (filled[v] == size_t(lanes)) return LoadF32(d, x + c * inner + v * lanes);
    else return filled[v] ? LoadF32N(d, x + c * inner + v * lanes, filled[v]) : hn::Zero(d);
  };
  const auto again = [&](int64_t c, int v)
                         HWY_ATTR { return keeps ? hn::Load(d, kept + (c * kVectors + v) * lanes) : read(c, v); };
  const V over = hn::Set(d, float(1.0 / double(n))), zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  V mean[kVectors], shift[kVectors], scale[kVectors];
  for (int v = 0; v < kVectors; ++v) mean[v] = shift[v] = scale[v] = zero;
  for (int64_t begin = 0; begin < n; begin += kTogether) {
    V part[kVectors];
    for (V &p : part) p = zero;
    for (int64_t c = begin; c < std::min(begin + kTogether, n); ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const V e = read(c, v);
        if (keeps) hn::Store(e, d, kept + (c * kVectors + v) * lanes);
        part[v] = hn::Add(part[v], e);
      }
    for (int v = 0; v < kVectors; ++v) mean[v] = hn::Add(mean[v], part[v]);
  }
  for (V &m : mean) m = hn::Mul(m, over);
  // What the rounded mean is off by, and the squares: as MeanVariance has them.
  for (int64_t begin = 0; begin < n; begin += kTogether) {
    V part[kVectors], square[kVectors];
    for (int v = 0; v < kVectors; ++v) part[v] = square[v] = zero;
    for (int64_t c = begin; c < std::min(begin + kTogether, n); ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const V off = hn::Sub(again(c, v), mean[v]);
        part[v] = hn::Add(part[v], off);
        square[v] = hn::MulAdd(off, off, square[v]);
      }
    for (int v = 0; v < kVectors; ++v) shift[v] = hn::Add(shift[v], part[v]), scale[v] = hn::Add(scale[v], square[v]);
  }
  bool held = true;
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = hn::Mul(shift[v], over);
    V variance = hn::NegMulAdd(shift[v], shift[v], hn::Mul(scale[v], over));
    variance = hn::IfThenElse(hn::Lt(variance, zero), zero, variance);  // keeps NaN
    const V sum = hn::Add(hn::IfThenElse(hn::FirstN(d, filled[v]), variance, one), hn::Set(d, float(g.epsilon)));
    held = held && hn::AllTrue(d, hn::And(hn::Le(sum, hn::Set(d, 3e38f)), hn::Ge(sum, hn::Set(d, 1e-30f))));
    scale[v] = hn::Div(one, hn::Sqrt(sum));
    shift[v] = hn::Neg(hn::Mul(shift[v], scale[v]));
  }
  if (HWY_UNLIKELY(!held)) {
    for (int64_t i = 0; i < width; ++i) normalise_column(g, x + i, y + i);
    return;
  }
  for (int64_t c = 0; c < n; ++c) {
    const V gamma = hn::Set(d, g.gamma ? g.gamma[c] : 1.0f), beta = hn::Set(d, g.beta ? g.beta[c] : 0.0f);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V unit = hn::MulAdd(hn::Sub(again(c, v), mean[v]), scale[v], shift[v]);
      T *to = y + c * inner + v * lanes;
      if (kWhole || filled[v] == size_t(lanes)) StoreF32(hn::MulAdd(unit, gamma, beta), d, to);
      else if (filled[v]) StoreF32N(hn::MulAdd(unit, gamma, beta), d, to, filled[v]);
    }
  }
}

// One column that lies together.
template <class T> HWY_INLINE void NormaliseRow(const Columns &g, const T *x, T *y) {
  const Moments at = MeanVariance(x, g.n);
  if (HWY_UNLIKELY(!Held(at.variance, g.epsilon))) return normalise_column(g, x, y);
  const float scale = float(1.0 / std::sqrt(double(at.variance) + g.epsilon));
  ScaleShift(x, at, scale, g.gamma, g.beta, y, g.n, false);
}

// Columns [begin, end).
template <class T> void NormaliseColumns(const Columns &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  constexpr int kFew = 4, kMost = std::max(kFew, 64 / int(hn::MaxLanes(d)));  // channels may be a page each
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t r = begin, width = 1; r < end; r += width) {
    const T *x = static_cast<const T *>(g.x) + g.begin(r);
    T *y = static_cast<T *>(g.y) + g.begin(r);
    if (g.inner == 1) {
      NormaliseRow(g, x, y);
      continue;
    }
    const int64_t left = std::min(g.inner - r % g.inner, end - r);
    width = left >= kMost * lanes ? kMost * lanes : std::min(left, kFew * lanes);
    if (width == kMost * lanes) Normalise<kMost, true>(g, x, y, width);
    else if (width > lanes) Normalise<kFew, false>(g, x, y, width);
    else Normalise<1, false>(g, x, y, width);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(NormaliseColumns)

namespace {

// [C], or ones with C where x has it, counted from the last dimension as they broadcast; of x's dtype or float32.
void check_channels(InferContext &c, int i, const char *name) {
  if (const int32_t t = c.input(0).dtype(), got = c.input(i).dtype(); got != t && got != OPGRAFT_FLOAT32)
    c.fail(OPGRAFT_INVALID_TYPE, name, ".dtype must be ", dtype_name(t), " or float32, got ", dtype_name(got));
  const auto x = c.input(0).shape(), given = c.input(i).shape();
  Shape want(given.size() == 1 ? 1 : std::clamp(given.size(), x.size() - 1, x.size()), 1);
  want[want.size() == x.size() ? 1 : 0] = x[1];
  c.check_shape(i, name, want);
}

void Infer(InferContext &c) {
  c.check_inputs(1, 3);
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() >= 3, "x must have at least 3 dimensions, got shape ", c.input(0).shape());
  if (c.inputs() > 1) check_channels(c, 1, "gamma");
  if (c.inputs() > 2) {
    check_channels(c, 2, "beta");
    c.check_same_dtype(2, "beta", 1, "gamma");
  }
  c.output(c.input(0).dtype(), c.input(0).shape());
}

// Parameters of half types in float32.
size_t floats(const Arguments &c) {
  size_t n = 0;
  for (int i = 1; i < c.inputs(); ++i)
    if (c.input(i).dtype() != OPGRAFT_FLOAT32 && c.input(i).size() > 0) n += size_t(c.input(i).size());
  return n;
}
uint64_t Workspace(InferContext &c) { return 4 * floats(c); }

Columns columns_of(const Context &c, float *scratch) {
  const auto x = c.input(0).shape();
  const int64_t inner = element_count(x.subspan(2));
  Columns g{
      c.input(0).raw(), c.output(0).raw(), nullptr, nullptr, x[1], inner, x[0] * inner, c.attr_float("epsilon", 1e-6)};
  for (int i = 1; i < c.inputs(); ++i) {
    const float *&to = i == 1 ? g.gamma : g.beta;
    if (c.input(i).dtype() == OPGRAFT_FLOAT32) {
      to = c.input(i).data<float>();
      continue;
    }
    const bool brain = c.input(i).dtype() == OPGRAFT_BFLOAT16;
    for (int64_t k = 0; k < g.n; ++k)
      scratch[k] = brain ? float(c.input(i).data<bfloat16>()[k]) : float(c.input(i).data<float16>()[k]);
    to = scratch;
    scratch += g.n;
  }
  return g;
}

void Kernel(Context &c) {
  if (c.input(0).size() == 0) return;
  const Scratch<float> scratch(c, floats(c));
  const Columns g = columns_of(c, scratch.get());
  const auto kernel = NormaliseColumns_simd(c.input(0).dtype());
  // About 10 µs of work, of whole vectors.
  const int64_t grain = g.inner == 1 ? rows_grain(g.n) : (rows_grain(g.n) + 63) / 64 * 64;
  c.parallel_for(g.count, grain, [&](int64_t begin, int64_t end) { kernel(g, begin, end); });
}

void Reference(Context &c) {
  if (c.input(0).size() == 0) return;
  const Scratch<float> scratch(c, floats(c));
  const Columns g = columns_of(c, scratch.get());
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < g.count; ++r)
      normalise_column(g, static_cast<const T *>(g.x) + g.begin(r), static_cast<T *>(g.y) + g.begin(r));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(LayerNorm2d, .inputs = -1, .infer = Infer, .kernel = Kernel, .reference = Reference, .workspace = Workspace)
#endif
