// LayerNorm: y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over the trailing dimensions
// (Ba, Kiros and Hinton 2016). A row is read once from memory; its later sweeps hit L1.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "layernorm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layernorm.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/norm-inl.h"
#include "aot_ops/common/rows_in_vector-inl.h"
// clang-format on

#ifndef OPGRAFT_LAYERNORM_ROWS_
#define OPGRAFT_LAYERNORM_ROWS_
namespace opgraft {
// Rows of n elements. gamma and beta have `params` elements and repeat along the row.
struct LayerNormRows {
  const void *x, *residual, *gamma, *beta;  // all but x: or null
  void *y, *sum;                            // sum: x + residual, where there is a residual
  float *mean, *variance, *rstd;            // or null
  int64_t n, params;
  double epsilon;
  bool wide;  // gamma and beta are float32, else x's type
  bool past;  // y goes past the caches, if it is float32
};

// Row r, x, in double: the scalar twin, and the kernel where float32 does not hold the row's squares.
template <class T> [[gnu::noinline]] void layer_norm_row(const LayerNormRows &g, int64_t r, const T *x) {
  T *y = static_cast<T *>(g.y) + r * g.n;
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < g.n; ++i) mean += double(float(x[i]));
  mean /= double(g.n);
  for (int64_t i = 0; i < g.n; ++i) variance += (double(float(x[i])) - mean) * (double(float(x[i])) - mean);
  variance /= double(g.n);
  if (g.mean) g.mean[r] = float(mean);
  if (g.variance) g.variance[r] = float(variance);
  const double scale = 1 / std::sqrt(variance + g.epsilon);
  if (g.rstd) g.rstd[r] = float(scale);
  auto of = [&](const void *p, int64_t i, double none) { return param<T>(p, g.wide, i % g.params, none); };
  for (int64_t i = 0; i < g.n; ++i)
    y[i] = T(float((double(float(x[i])) - mean) * scale * of(g.gamma, i, 1) + of(g.beta, i, 0)));
}
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Row r, x.
template <class T, class G> HWY_INLINE void RowOf(const LayerNormRows &g, int64_t r, const T *x) {
  const G *gamma = static_cast<const G *>(g.gamma), *beta = static_cast<const G *>(g.beta);
  T *y = static_cast<T *>(g.y) + r * g.n;
  const Moments at = MeanVariance(x, g.n);
  const float scale = float(1.0 / std::sqrt(double(at.variance) + g.epsilon));
  if (HWY_UNLIKELY(!Held(at.variance, g.epsilon))) return layer_norm_row(g, r, x);
  if (g.mean) g.mean[r] = at.base + at.shift;
  if (g.variance) g.variance[r] = at.variance;
  if (g.rstd) g.rstd[r] = scale;
  for (int64_t i = 0; i < g.n; i += g.params) ScaleShift(x + i, at, scale, gamma, beta, y + i, g.params, g.past);
}

// What RowOf does, of as many rows as a vector holds, of x's `left` elements from row r on.
template <class T> HWY_INLINE void VectorOf(const LayerNormRows &g, int64_t r, const RowsInVector &in, const T *x,
                                            int64_t left, RowsInVector::V gamma, RowsInVector::V beta) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), width = std::min(in.width, left), rows = width / g.n;
  const auto inverse = hn::Set(d, 1.0f / float(g.n)), epsilon = hn::Set(d, float(g.epsilon)), zero = hn::Zero(d);
  const auto v = left >= lanes ? LoadF32(d, x) : LoadF32N(d, x, size_t(left));
  const auto base = hn::Mul(in.Sum(v), inverse), from = hn::Sub(v, base);  // as MeanVariance
  const auto shift = hn::Mul(in.Sum(from), inverse), square = hn::Mul(in.Sum(hn::Mul(from, from)), inverse);
  const auto less = hn::NegMulAdd(shift, shift, square), variance = hn::IfThenElse(hn::Lt(less, zero), zero, less);
  const auto sum = hn::Add(variance, epsilon), scale = hn::Div(hn::Set(d, 1.0f), hn::Sqrt(sum));
  const auto held = hn::And(hn::Le(variance, hn::Set(d, 3e38f)), hn::Ge(sum, hn::Set(d, 1e-30f)));
  T before[hn::MaxLanes(d)];
  const bool all = hn::AllTrue(d, held);
  if (HWY_UNLIKELY(!all)) std::copy_n(x, width, before);  // y may be x
  const auto statistic = [&](float *out, auto s) HWY_ATTR {
    if (out) StoreF32N(hn::TableLookupLanes(s, in.first), d, out + r, size_t(rows));
  };
  statistic(g.mean, hn::Add(base, shift));
  statistic(g.variance, variance);
  statistic(g.rstd, scale);
  const auto unit = hn::Mul(hn::Sub(from, shift), scale);
  T *y = static_cast<T *>(g.y) + r * g.n;
  if (width == lanes) StoreF32(hn::MulAdd(unit, gamma, beta), d, y);
  else StoreF32N(hn::MulAdd(unit, gamma, beta), d, y, size_t(width));
  if (HWY_LIKELY(all)) return;
  HWY_ALIGN float fine[hn::MaxLanes(d)];
  hn::Store(hn::IfThenElseZero(held, hn::Set(d, 1.0f)), d, fine);
  for (int64_t i = 0; i < rows; ++i)
    if (fine[i * g.n] == 0.0f) layer_norm_row(g, r + i, before + i * g.n);
}

template <class T, class G> HWY_NOINLINE void ShortRowsOf(const LayerNormRows &g, int64_t begin, int64_t end) {
  const RowsInVector in(g.n);
  const auto gamma = in.Repeated(static_cast<const G *>(g.gamma), g.params, 1.0f);
  const auto beta = in.Repeated(static_cast<const G *>(g.beta), g.params, 0.0f);
  const int64_t together = rows_together(g.n) / in.rows * in.rows;
  for (int64_t r = begin; r < end; r += together) {
    const int64_t count = std::min(together, end - r);
    const T *x = NormalisedRows<T>(g, r, count);
    for (int64_t i = 0; i < count; i += in.rows) VectorOf(g, r + i, in, x + i * g.n, (count - i) * g.n, gamma, beta);
  }
}

template <class T, class G> void RowsOf(const LayerNormRows &g, int64_t begin, int64_t end) {
  if (RowsInVector::several(g.n) || (RowsInVector::fits(g.n) && !g.past)) return ShortRowsOf<T, G>(g, begin, end);
  const int64_t together = rows_together(g.n);
  const T *x = nullptr;
  for (int64_t r = begin; r < end; ++r, x += g.n) {
    if ((r - begin) % together == 0) x = NormalisedRows<T>(g, r, std::min(together, end - r));
    RowOf<T, G>(g, r, x);
  }
  if (g.past) hwy::FlushStream();
}

template <class T> void LayerNormalise(const LayerNormRows &g, int64_t begin, int64_t end) {
  g.wide ? RowsOf<T, float>(g, begin, end) : RowsOf<T, T>(g, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(LayerNormalise)

namespace {

enum Form { kLayerNorm, kFused, kAdd, kExt };

void check_x(InferContext &c, const char *x = "x") {
  c.check_dtype(0, x, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, x, " must have at least 1 dimension, got shape ()");
}

// gamma and beta (inputs i and i + 1, where they are given) have x's `last` dimensions.
void check_whole(InferContext &c, int i, int last, bool wide, const char *x = "x", const char *gamma = "gamma",
                 const char *beta = "beta") {
  if (c.inputs() > i) check_params(c, i, gamma, x, wide, last);
  if (c.inputs() <= i + 1) return;
  check_params(c, i + 1, beta, x, wide, last);
  c.check_same_dtype(i + 1, beta, i, gamma);
}

void Infer(InferContext &c) {
  check_x(c);
  const LayerNormAxes axes = norm_axes(c);
  check_whole(c, 1, c.input(0).rank() - axes.params, false);
  const Shape statistics = rows_shape(c, axes.norm);
  c.output(c.input(0).dtype(), c.input(0).shape());
  c.output(OPGRAFT_FLOAT32, statistics);
  c.output(OPGRAFT_FLOAT32, statistics);
}

void InferFused(InferContext &c) {
  c.check_inputs(1, 3);
  check_x(c);
  check_whole(c, 1, 1, true);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void InferAdd(InferContext &c) {
  c.check_inputs(2, 4);
  check_x(c);
  c.check_same_dtype(1, "residual", 0, "x");
  c.check_same_shape(1, "residual", 0, "x");
  check_whole(c, 2, 1, true);
  c.output(c.input(0).dtype(), c.input(0).shape());
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void InferExt(InferContext &c) {
  c.check_inputs(1, 3);
  check_x(c, "input");
  const auto x = c.input(0).shape();
  const int last = normalized_dims(c, 0, "input");
  check_whole(c, 1, last, false, "input", "weight", "bias");
  const Shape statistics = rows_shape(c, int(x.size()) - last);
  c.output(c.input(0).dtype(), x);
  c.output(OPGRAFT_FLOAT32, statistics);
  c.output(OPGRAFT_FLOAT32, statistics);
}

template <Form form> LayerNormRows rows_of(const Context &c) {
  constexpr int p = form == kAdd ? 2 : 1;
  const int rank = c.input(0).rank();
  const int norm = form == kLayerNorm ? norm_axes(c).norm
                   : form == kExt     ? rank - int(c.attr_ints("normalized_shape").size())
                                      : rank - 1;
  LayerNormRows g{};
  g.x = c.input(0).raw();
  if (form == kAdd) g.residual = c.input(1).raw(), g.sum = c.output(1).raw();
  if (c.inputs() > p) g.gamma = c.input(p).raw();
  if (c.inputs() > p + 1) g.beta = c.input(p + 1).raw();
  g.y = c.output(0).raw();
  if (form == kLayerNorm || form == kExt) g.mean = c.output(1).data<float>();
  if (form == kLayerNorm) g.variance = c.output(2).data<float>();
  if (form == kExt) g.rstd = c.output(2).data<float>();
  g.n = element_count(c.input(0).shape().subspan(size_t(norm)));
  g.params = g.gamma ? c.input(p).size() : g.n;
  g.epsilon = c.attr_float(form == kExt ? "eps" : "epsilon", 1e-5);
  g.wide = wide_params(c, p);
  return g;
}

// Statistics of rows without elements.
void no_elements(const Context &c, const LayerNormRows &g) {
  for (float *statistics : {g.mean, g.variance, g.rstd})
    if (g.n == 0 && statistics) std::fill_n(statistics, c.output(1).size(), NAN);
}

template <Form form> void Kernel(Context &c) {
  LayerNormRows g = rows_of<form>(c);
  g.past = goes_past_caches(c);
  no_elements(c, g);
  const auto kernel = LayerNormalise_simd(c.input(0).dtype());
  c.parallel_for(row_count(c, g.n), rows_grain(g.n), [&](int64_t b, int64_t e) { kernel(g, b, e); });
}

template <Form form> void Reference(Context &c) {
  const LayerNormRows g = rows_of<form>(c);
  no_elements(c, g);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < row_count(c, g.n); ++r) layer_norm_row(g, r, normalised_row<T>(g, r));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
#define OPGRAFT_LAYER_NORM(Name, in, out, Infer, form) \
  OPGRAFT_OP(Name, .inputs = in, .outputs = out, .infer = Infer, .kernel = Kernel<form>, .reference = Reference<form>)
OPGRAFT_LAYER_NORM(LayerNorm, 3, 3, Infer, kLayerNorm)
OPGRAFT_LAYER_NORM(FusedLayerNorm, -1, 1, InferFused, kFused)
OPGRAFT_LAYER_NORM(AddLayerNorm, -1, 2, InferAdd, kAdd)
OPGRAFT_LAYER_NORM(LayerNormExt, -1, 3, InferExt, kExt)
#endif
