// RMSNorm: y = x / sqrt(mean of x^2 + epsilon) * gamma over the trailing dimensions (Zhang and Sennrich 2019), also of
// a sum with a residual. A row is read once from memory; its later sweeps hit L1.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "aot_ops/common/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rmsnorm.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "short_rows-inl.h"
// clang-format on

#ifndef OPGRAFT_RMSNORM_ROWS_
#define OPGRAFT_RMSNORM_ROWS_
namespace opgraft {
// Rows of n elements.
struct RmsNormRows {
  const void *x, *residual, *gamma;  // residual, gamma: or null
  void *y, *sum;                     // sum: x + residual, where there is a residual
  float *rstd;                       // or null
  int64_t n;
  double epsilon;
  bool wide;  // gamma is float32, else x's type
  bool past;  // y goes past the caches, if it is float32
};

// Row r, x, in double: the scalar twin, and the kernel where float32 does not hold the row's scale.
template <class T> [[gnu::noinline]] void rms_norm_row(const RmsNormRows &g, int64_t r, const T *x) {
  T *y = static_cast<T *>(g.y) + r * g.n;
  double square = 0;
  for (int64_t i = 0; i < g.n; ++i) square += double(float(x[i])) * double(float(x[i]));
  const double scale = 1 / std::sqrt(square / double(g.n) + g.epsilon);
  if (g.rstd) g.rstd[r] = float(scale);
  for (int64_t i = 0; i < g.n; ++i) y[i] = T(float(double(float(x[i])) * scale * param<T>(g.gamma, g.wide, i, 1)));
}
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Row r, x, by its scale, or one that float32 does not hold.
template <class T, class G> HWY_INLINE void ByScale(const RmsNormRows &g, int64_t r, const T *x, float scale) {
  if (g.rstd) g.rstd[r] = scale;
  if (HWY_LIKELY(Normal(scale)))
    ScaleRow(x, scale, static_cast<const G *>(g.gamma), static_cast<T *>(g.y) + r * g.n, g.n, g.past);
  else rms_norm_row(g, r, x);
}

// Rows from r on whose scales are known, but for those that are 0.
template <class T, class G>
HWY_NOINLINE void ByScales(const RmsNormRows &g, int64_t r, int64_t count, const T *x, const float *scales) {
  for (int64_t i = 0; i < count; ++i, x += g.n)
    ByScale<T, G>(g, r + i, x, scales[i] > 0 ? scales[i] : InverseRms(x, g.n, g.epsilon));
}

// Short rows, whose scales are computed together: each alone takes two slow instructions, as does a vector of them.
template <class T, class G>
HWY_NOINLINE void ShortRowsOf(const RmsNormRows &g, int64_t begin, int64_t end, const RowsInVector *in) {
  const int64_t together = rows_together(g.n);
  HWY_ALIGN float scales[kMostRows + 2 * hn::MaxLanes(hn::ScalableTag<float>())];
  for (int64_t r = begin; r < end; r += together) {
    const int64_t count = std::min(together, end - r);
    const T *x = NormalisedRows<T>(g, r, count);
    SumsOfSquares(x, g.n, count, in, scales);
    if (HWY_UNLIKELY(!InverseRmsOf(scales, g.n, count, g.epsilon))) {
      ByScales<T, G>(g, r, count, x, scales);
      continue;
    }
    if (g.rstd) std::copy_n(scales, count, g.rstd + r);
    ScaleRows(x, scales, static_cast<const G *>(g.gamma), static_cast<T *>(g.y) + r * g.n, g.n, count, in, g.past);
  }
}

template <class T, class G> void RowsOf(const RmsNormRows &g, int64_t begin, int64_t end) {
  if (RowsInVector::several(g.n)) {
    const RowsInVector in(g.n);
    ShortRowsOf<T, G>(g, begin, end, &in);
  } else if (rows_together(g.n) > 1) {
    ShortRowsOf<T, G>(g, begin, end, nullptr);
  } else {
    for (int64_t r = begin; r < end; ++r) {
      const T *x = NormalisedRows<T>(g, r, 1);
      ByScale<T, G>(g, r, x, InverseRms(x, g.n, g.epsilon));
    }
  }
  if (g.past) hwy::FlushStream();
}

template <class T> void RmsNormalise(const RmsNormRows &g, int64_t begin, int64_t end) {
  g.wide ? RowsOf<T, float>(g, begin, end) : RowsOf<T, T>(g, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(RmsNormalise)

namespace {

// x, a residual of the same kind, and gamma over x's trailing dimensions. `wide`: gamma may also be float32.
void check(InferContext &c, const char *const (&names)[3], bool add, bool wide) {
  c.check_dtype(0, names[0], {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, names[0], " must have at least 1 dimension, got shape ()");
  if (add) {
    c.check_same_dtype(1, names[1], 0, names[0]);
    c.check_same_shape(1, names[1], 0, names[0]);
  }
  if (const int i = add ? 2 : 1; c.inputs() > i) check_params(c, i, names[2], names[0], wide);
}

int first_axis(const Arguments &c, int gamma) { return c.input(0).rank() - trailing(c, gamma); }

void Infer(InferContext &c) {
  check(c, {"x", "", "gamma"}, false, false);
  c.output(c.input(0).dtype(), c.input(0).shape());
  c.output(OPGRAFT_FLOAT32, rows_shape(c, first_axis(c, 1)));
}

void InferAdd(InferContext &c) {
  check(c, {"x1", "x2", "gamma"}, true, false);
  c.output(c.input(0).dtype(), c.input(0).shape());
  c.output(OPGRAFT_FLOAT32, rows_shape(c, first_axis(c, 2)));
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void InferFused(InferContext &c) {
  c.check_inputs(1, 2);
  check(c, {"x", "", "gamma"}, false, true);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void InferFusedAdd(InferContext &c) {
  c.check_inputs(2, 3);
  check(c, {"x", "residual", "gamma"}, true, true);
  c.output(c.input(0).dtype(), c.input(0).shape());
  c.output(c.input(0).dtype(), c.input(0).shape());
}

// Where an operator has its statistics and its sum among the outputs; 0: nowhere.
template <bool kAdd, int kRstd> RmsNormRows rows_of(const Context &c) {
  constexpr int gamma = kAdd ? 2 : 1, sum = kAdd ? kRstd + 1 : 0;
  return {c.input(0).raw(),
          kAdd ? c.input(1).raw() : nullptr,
          c.inputs() > gamma ? c.input(gamma).raw() : nullptr,
          c.output(0).raw(),
          sum ? c.output(sum).raw() : nullptr,
          kRstd ? c.output(kRstd).template data<float>() : nullptr,
          element_count(c.input(0).shape().subspan(size_t(first_axis(c, gamma)))),
          c.attr_float("epsilon", 1e-6),
          wide_params(c, gamma),
          false};
}

template <bool kAdd, int kRstd> void Kernel(Context &c) {
  RmsNormRows g = rows_of<kAdd, kRstd>(c);
  g.past = goes_past_caches(c);
  if (g.n == 0 && g.rstd) std::fill_n(g.rstd, c.output(kRstd).size(), NAN);
  const auto kernel = RmsNormalise_simd(c.input(0).dtype());
  c.parallel_for(row_count(c, g.n), rows_grain(g.n), [&](int64_t b, int64_t e) { kernel(g, b, e); });
}

template <bool kAdd, int kRstd> void Reference(Context &c) {
  const RmsNormRows g = rows_of<kAdd, kRstd>(c);
  if (g.n == 0 && g.rstd) std::fill_n(g.rstd, c.output(kRstd).size(), NAN);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < row_count(c, g.n); ++r) rms_norm_row(g, r, normalised_row<T>(g, r));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(RmsNorm, .inputs = 2, .outputs = 2, .infer = Infer, .kernel = Kernel<false, 1>,
           .reference = Reference<false, 1>)
OPGRAFT_OP(AddRmsNorm, .inputs = 3, .outputs = 3, .infer = InferAdd, .kernel = Kernel<true, 1>,
           .reference = Reference<true, 1>)
OPGRAFT_OP(FusedRmsNorm, .inputs = -1, .infer = InferFused, .kernel = Kernel<false, 0>,
           .reference = Reference<false, 0>)
OPGRAFT_OP(FusedAddRmsNorm, .inputs = -1, .outputs = 2, .infer = InferFusedAdd, .kernel = Kernel<true, 0>,
           .reference = Reference<true, 0>)
#endif
