// Gradients of Softmax along one axis, of its result y: dx = scale y (dy - sum of dy y), 0 where a mask of bools chose
// a number. Half types compute in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <vector>

#include "mask_gradient.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "softmax_grad.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/norm-inl.h"
#include "mask-inl.h"
// clang-format on

#ifndef OPGRAFT_SOFTMAX_GRAD_ROWS_
#define OPGRAFT_SOFTMAX_GRAD_ROWS_
namespace opgraft {
struct SoftmaxGradRows : SoftmaxAxis {
  const void *dy, *y;
  void *dx;
  float scale;
  SoftmaxMask mask;
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> HWY_INLINE void GradRow(const T *dy, const T *y, T *dx, int64_t n, float scale) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    s0 = hn::MulAdd(LoadF32(d, dy + i), LoadF32(d, y + i), s0);
    s1 = hn::MulAdd(LoadF32(d, dy + i + lanes), LoadF32(d, y + i + lanes), s1);
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::MulAdd(LoadF32(d, dy + i), LoadF32(d, y + i), s0);
  if (const size_t rest = size_t(n - i)) s1 = hn::MulAdd(LoadF32N(d, dy + i, rest), LoadF32N(d, y + i, rest), s1);
  const auto dot = hn::SumOfLanes(d, hn::Add(s0, s1)), by = hn::Set(d, scale);
  Map([&](auto, auto g, auto v) HWY_ATTR { return hn::Mul(hn::Mul(hn::Sub(g, dot), by), v); }, dx, n, dy, y);
}

// `width` (at most a vector) neighbouring columns.
template <class T>
HWY_INLINE void GradColumns(const T *dy, const T *y, T *dx, const SoftmaxGradRows &a, int64_t width) {
  const hn::ScalableTag<float> d;
  const bool full = width == int64_t(hn::Lanes(d));
  auto load = [&](const T *p) HWY_ATTR { return full ? LoadF32(d, p) : LoadF32N(d, p, size_t(width)); };
  auto dot = hn::Zero(d);
  for (int64_t k = 0; k < a.n; ++k) dot = hn::MulAdd(load(dy + k * a.inner), load(y + k * a.inner), dot);
  for (int64_t k = 0; k < a.n; ++k) {
    const auto v = hn::Mul(hn::Mul(hn::Sub(load(dy + k * a.inner), dot), hn::Set(d, a.scale)), load(y + k * a.inner));
    if (full) StoreF32(v, d, dx + k * a.inner);
    else StoreF32N(v, d, dx + k * a.inner, size_t(width));
  }
}

// 0 where the n bools hide the score.
template <class D, class T> HWY_INLINE void Hide(const Hidden<D> &hidden, const uint8_t *mask, T *dx, int64_t n) {
  const D d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(hn::IfThenZeroElse(hidden(mask + i), LoadF32(d, dx + i)), d, dx + i);
  if (const size_t rest = size_t(n - i))
    StoreF32N(hn::IfThenZeroElse(hidden(mask + i, rest), LoadF32N(d, dx + i, rest)), d, dx + i, rest);
}

// Rows along the last axis, or as many neighbouring columns as lie side by side in the mask or share an element.
template <class T> void HideRows(const SoftmaxGradRows &a, int64_t begin, int64_t end) {
  const Hidden hidden(hn::ScalableTag<float>(), a.mask);
  const bool last = a.inner == 1;
  const auto [length, along] = last ? SoftmaxMask::Run{1, a.mask.step()} : a.mask.run(a.mask.axis + 1);
  for (int64_t r = begin, count; r < end; r += count) {
    count = std::min(length - r % length, end - r);  // which is a part of the columns
    const int64_t from = a.mask.row(r), lines = last ? 1 : a.n, width = last ? a.n : count;
    T *dx = static_cast<T *>(a.dx) + a.begin(r);
    for (int64_t k = 0; k < lines; ++k, dx += a.inner) {
      const int64_t at = from + k * a.mask.step();
      if (along) Hide(hidden, a.mask.bools() + at, dx, width);
      else if (a.mask.gone(at)) std::fill_n(dx, width, T(0.0f));
    }
  }
}

template <class T> void GradRows(const SoftmaxGradRows &a, int64_t begin, int64_t end) {
  const T *dy = static_cast<const T *>(a.dy), *y = static_cast<const T *>(a.y);
  T *dx = static_cast<T *>(a.dx);
  const int64_t lanes = int64_t(hn::Lanes(hn::ScalableTag<float>()));
  for (int64_t r = begin; r < end;) {
    if (a.inner == 1) {
      GradRow(dy + r * a.n, y + r * a.n, dx + r * a.n, a.n, a.scale);
      ++r;
      continue;
    }
    const int64_t column = r % a.inner, width = std::min({lanes, a.inner - column, end - r});
    const int64_t at = a.begin(r);
    GradColumns(dy + at, y + at, dx + at, a, width);
    r += width;
  }
  if (a.mask.chosen) HideRows<T>(a, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(GradRows)

namespace {

// The names by op: SoftmaxBackward is MindSpore's.
void check(InferContext &c, const char *gradient, const char *result, const char *axis) {
  c.check_dtype(0, gradient, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, result, 0, gradient);
  c.check_same_shape(1, result, 0, gradient);
  c.axis(c.attr_int(axis, -1), c.input(0).rank(), axis);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void Infer(InferContext &c) { check(c, "dout", "out", "dim"); }

void InferScaled(InferContext &c) {
  c.check_inputs(2, 3);
  check(c, "dy", "y", "axis");
  if (c.inputs() == 3) check_mask(c, 2, "dy");
  c.output(c.input(0).dtype(), c.inputs() == 3 ? c.input(2).shape() : std::span<const int64_t>());
}

SoftmaxGradRows rows_of(const Context &c) {
  const SoftmaxAxis axis = softmax_axis(c, c.outputs() == 1 ? "dim" : "axis");
  return {axis,
          c.input(0).raw(),
          c.input(1).raw(),
          c.output(0).raw(),
          float(c.attr_float("scale", 1.0)),
          softmax_mask(c, 2, axis.axis)};
}

// y (dy - sum of dy y) in double, as f(index of the element, value).
template <class T, class F> void each(const Context &c, const SoftmaxGradRows &a, const F &f) {
  const T *dy = c.input(0).data<T>(), *y = c.input(1).data<T>();
  auto wide = [](T v) { return double(float(v)); };
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t at = a.begin(r);
    double dot = 0;
    for (int64_t k = 0; k < a.n; ++k) dot += wide(dy[at + k * a.inner]) * wide(y[at + k * a.inner]);
    for (int64_t k = 0; k < a.n; ++k) {
      const int64_t i = at + k * a.inner;
      f(i, wide(y[i]) * (wide(dy[i]) - dot));
    }
  }
}

// The gradient of the mask: of all scores that it was added to.
template <class T> void mask_gradient_reference(const Context &c, const SoftmaxGradRows &a) {
  std::vector<double> sum(size_t(c.output(1).size()));
  if (mask_is_added(c)) each<T>(c, a, [&](int64_t i, double v) { sum[size_t(a.mask.of(i))] += v; });
  const double factor = float(c.attr_float("mask_scale", 1.0));
  std::transform(sum.begin(), sum.end(), c.output(1).data<T>(), [&](double v) { return T(float(v * factor)); });
}

void Kernel(Context &c) {
  const SoftmaxGradRows a = rows_of(c);
  if (c.outputs() == 2)  // before dx, which may lie in dy
    dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) { mask_gradient<decltype(zero)>(c, a); });
  const auto rows = GradRows_simd(c.input(0).dtype());
  c.parallel_for(a.rows, a.grain(32768), [&](int64_t begin, int64_t end) { rows(a, begin, end); });
}

void Reference(Context &c) {
  const SoftmaxGradRows a = rows_of(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (c.outputs() == 2) mask_gradient_reference<T>(c, a);
    T *dx = c.output(0).data<T>();
    each<T>(c, a, [&](int64_t i, double v) {
      const bool gone = a.mask.chosen && a.mask.gone(a.mask.of(i));
      dx[i] = T(gone ? 0.0f : float(v * double(a.scale)));
    });
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(SoftmaxBackward, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
OPGRAFT_OP(ScaledMaskedSoftmaxGrad, .inputs = -1, .outputs = 2, .infer = InferScaled, .kernel = Kernel,
           .reference = Reference)
#endif
