// Softmax: y = e^(s - max s) / sum of e^(s - max s) along one axis, of s = x or of s = x scale + mask, or where bools
// choose, of x scale and a number. Half types compute in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "softmax.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/norm-inl.h"
#include "mask-inl.h"
// clang-format on

#ifndef OPGRAFT_SOFTMAX_ROWS_
#define OPGRAFT_SOFTMAX_ROWS_
namespace opgraft {
struct SoftmaxRows : SoftmaxAxis {
  const void *x;
  void *y;
  float scale, mask_scale, fill;  // fill: what a score becomes that bools hide
  bool nan_to_zero;               // a row that would be NaN
  SoftmaxMask mask;
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

inline constexpr int kTogether = 2;

// kRows neighbouring rows from row r on, of scores score(v, row, i) of a whole vector v from element i on,
// score(v, row, i, rest) of the last elements; together, since a row alone waits for its maximum and its sum. float32
// keeps in y the exponentials, and before them the scores where a mask makes them; half types compute both anew, as
// rounding them before the division would cost accuracy.
template <int kRows, bool kMasked, class T, class Score>
HWY_INLINE void ContiguousRows(const SoftmaxRows &g, int64_t r, const Score &score) {
  const hn::ScalableTag<float> d;
  const int64_t n = g.n;
  const T *x = static_cast<const T *>(g.x) + r * n;
  T *y = static_cast<T *>(g.y) + r * n;
  const auto at = [&](int j, int64_t i, auto... k)
                      HWY_ATTR { return score(LoadSome(d, x + j * n + i, k...), j, i, k...); };
  const int64_t lanes = int64_t(hn::Lanes(d)), whole = n / lanes * lanes;
  const size_t rest = size_t(n - whole);
  const auto inside = hn::FirstN(d, rest);
  const auto lowest = hn::Set(d, -HUGE_VALF);
  hn::Vec<decltype(d)> most[kRows], tail[kRows], sum[kRows];
  for (int j = 0; j < kRows; ++j) {
    tail[j] = rest ? hn::IfThenElse(inside, at(j, whole, rest), lowest) : lowest;
    most[j] = tail[j];
    sum[j] = hn::Zero(d);
  }
  constexpr bool kKept = kMasked && std::is_same_v<T, float>;
  for (int64_t i = 0; i < whole; i += lanes)
    for (int j = 0; j < kRows; ++j) {
      const auto s = at(j, i);
      if constexpr (kKept) StoreF32(s, d, y + j * n + i);
      most[j] = hn::Max(most[j], s);
    }
  for (int j = 0; j < kRows; ++j) most[j] = hn::MaxOfLanes(d, most[j]);
  for (int64_t i = 0; i < whole; i += lanes)
    for (int j = 0; j < kRows; ++j) {
      auto s = most[j];
      if constexpr (kKept) s = hn::LoadU(d, y + j * n + i);
      else s = at(j, i);
      const auto e = ExpBelow0(d, hn::Sub(s, most[j]));
      if constexpr (std::is_same_v<T, float>) StoreF32(e, d, y + j * n + i);
      sum[j] = hn::Add(sum[j], e);
    }
  for (int j = 0; j < kRows; ++j) {
    if (rest) {
      tail[j] = hn::IfThenElseZero(inside, ExpBelow0(d, hn::Sub(tail[j], most[j])));
      sum[j] = hn::Add(sum[j], tail[j]);
    }
    sum[j] = hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, sum[j]));
    if (rest) tail[j] = hn::Mul(tail[j], sum[j]);
  }
  for (int64_t i = 0; i < whole; i += lanes)
    for (int j = 0; j < kRows; ++j) {
      auto e = hn::Zero(d);
      if constexpr (std::is_same_v<T, float>) e = hn::LoadU(d, y + j * n + i);
      else e = ExpBelow0(d, hn::Sub(at(j, i), most[j]));
      StoreF32(hn::Mul(e, sum[j]), d, y + j * n + i);
    }
  if (rest)
    for (int j = 0; j < kRows; ++j) StoreF32N(tail[j], d, y + j * n + whole, rest);
}

// `width` (at most a vector) neighbouring columns of n elements, `stride` apart; load(k) gives their scores.
template <class T, class Load> HWY_INLINE void Columns(Load load, T *y, int64_t n, int64_t stride, size_t width) {
  const hn::ScalableTag<float> d;
  const bool full = width == hn::Lanes(d);
  auto most = hn::Set(d, -HUGE_VALF), sum = hn::Zero(d);
  for (int64_t k = 0; k < n; ++k) most = hn::Max(most, load(k));
  for (int64_t k = 0; k < n; ++k) sum = hn::Add(sum, ExpBelow0(d, hn::Sub(load(k), most)));
  const auto scale = hn::Div(hn::Set(d, 1.0f), sum);
  for (int64_t k = 0; k < n; ++k) {
    const auto v = hn::Mul(ExpBelow0(d, hn::Sub(load(k), most)), scale);
    if (full) StoreF32(v, d, y + k * stride);
    else StoreF32N(v, d, y + k * stride, width);
  }
}

// Scores without a mask, with one that is added, with one of bools.
template <int kRows, class T> HWY_INLINE void PlainRows(const SoftmaxRows &g, int64_t r) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale);
  if (g.scale == 1.0f) ContiguousRows<kRows, false, T>(g, r, [&](auto v, auto...) HWY_ATTR { return v; });
  else ContiguousRows<kRows, false, T>(g, r, [&](auto v, auto...) HWY_ATTR { return hn::Mul(v, scale); });
}

template <int kRows, class T> HWY_INLINE void AddedRows(const SoftmaxRows &g, int64_t r) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale), factor = hn::Set(d, g.mask_scale);
  const T *mask[kRows];
  for (int j = 0; j < kRows; ++j) mask[j] = static_cast<const T *>(g.mask.data) + g.mask.row(r + j);
  if (!g.mask.step())
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, auto...) HWY_ATTR {
      return hn::MulAdd(v, scale, hn::Mul(hn::Set(d, float(*mask[j])), factor));
    });
  else if (g.mask_scale == 1.0f)
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, int64_t i, auto... k) HWY_ATTR {
      return hn::MulAdd(v, scale, LoadSome(d, mask[j] + i, k...));
    });
  else
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, int64_t i, auto... k) HWY_ATTR {
      return hn::MulAdd(v, scale, hn::Mul(LoadSome(d, mask[j] + i, k...), factor));
    });
}

template <int kRows, class T> HWY_INLINE void ChosenRows(const SoftmaxRows &g, int64_t r) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale), fill = hn::Set(d, g.fill);
  const Hidden hidden(d, g.mask);
  const uint8_t *mask[kRows];
  for (int j = 0; j < kRows; ++j) mask[j] = g.mask.bools() + g.mask.row(r + j);
  if (g.mask.step())
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, int64_t i, auto... k) HWY_ATTR {
      return hn::IfThenElse(hidden(mask[j] + i, k...), fill, hn::Mul(v, scale));
    });
  else
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, auto...) HWY_ATTR {
      return (*mask[j] != 0) == g.mask.hides ? fill : hn::Mul(v, scale);
    });
}

// Rows [begin, end) along the last axis. Each kind of mask has its loop: constants are loaded once for many short rows.
enum Kind { kPlain, kAdded, kChosen };
template <Kind kind, int kRows, class T> HWY_INLINE void ScoreRows(const SoftmaxRows &g, int64_t r) {
  if constexpr (kind == kPlain) PlainRows<kRows, T>(g, r);
  if constexpr (kind == kAdded) AddedRows<kRows, T>(g, r);
  if constexpr (kind == kChosen) ChosenRows<kRows, T>(g, r);
}
template <Kind kind, class T> void RowsTogether(const SoftmaxRows &g, int64_t begin, int64_t end) {
  int64_t r = begin;
  for (; r + kTogether <= end; r += kTogether) ScoreRows<kind, kTogether, T>(g, r);
  for (; r < end; ++r) ScoreRows<kind, 1, T>(g, r);
}

// Rows [begin, end) that are NaN, which they are throughout.
template <class T> void NanToZero(const SoftmaxRows &g, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T *y = static_cast<T *>(g.y) + g.begin(r);
    if (!std::isnan(float(*y))) continue;
    for (int64_t k = 0; k < g.n; ++k) y[k * g.inner] = T(0.0f);
  }
}

// Along another axis than the last.
template <class T> void RowsApart(const SoftmaxRows &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto scale = hn::Set(d, g.scale);
  for (int64_t r = begin; r < end;) {
    const int64_t column = r % g.inner, width = std::min({lanes, g.inner - column, end - r});
    const int64_t at = g.begin(r);
    const T *x = static_cast<const T *>(g.x) + at;
    T *y = static_cast<T *>(g.y) + at;
    auto load = [&](int64_t k) HWY_ATTR {
      return width == lanes ? LoadF32(d, x + k * g.inner) : LoadF32N(d, x + k * g.inner, size_t(width));
    };
    if (g.mask.data) {
      int64_t from[hn::MaxLanes(d)];
      for (int64_t i = 0; i < width; ++i) from[i] = g.mask.row(r + i);
      const auto fill = hn::Set(d, g.fill);
      Columns(
          [&](int64_t k) HWY_ATTR {
            HWY_ALIGN float mask[hn::MaxLanes(d)] = {};
            for (int64_t i = 0; i < width; ++i) {
              const int64_t each = from[i] + k * g.mask.step();
              mask[i] = g.mask.chosen ? float(g.mask.gone(each))
                                      : float(static_cast<const T *>(g.mask.data)[each]) * g.mask_scale;
            }
            const auto m = hn::Load(d, mask);
            if (!g.mask.chosen) return hn::MulAdd(load(k), scale, m);
            return hn::IfThenElse(hn::Ne(m, hn::Zero(d)), fill, hn::Mul(load(k), scale));
          },
          y, g.n, g.inner, size_t(width));
    } else if (g.scale != 1.0f) {
      Columns([&](int64_t k) HWY_ATTR { return hn::Mul(load(k), scale); }, y, g.n, g.inner, size_t(width));
    } else {
      Columns(load, y, g.n, g.inner, size_t(width));
    }
    r += width;
  }
}

// Rows [begin, end) of the outer * inner rows.
template <class T> void Rows(const SoftmaxRows &g, int64_t begin, int64_t end) {
  if (g.inner != 1) RowsApart<T>(g, begin, end);
  else if (!g.mask.data) RowsTogether<kPlain, T>(g, begin, end);
  else if (g.mask.chosen) RowsTogether<kChosen, T>(g, begin, end);
  else RowsTogether<kAdded, T>(g, begin, end);
  if (g.nan_to_zero) NanToZero<T>(g, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Rows)

namespace {

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.axis(c.attr_int("axis", -1), c.input(0).rank());
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void InferMasked(InferContext &c) {
  c.check_inputs(1, 2);
  if (c.inputs() == 2) check_mask(c, 1, "x");
  Infer(c);
}

SoftmaxRows rows_of(const Context &c) {
  SoftmaxRows g{};
  static_cast<SoftmaxAxis &>(g) = softmax_axis(c, "axis");
  g.x = c.input(0).raw();
  g.y = c.output(0).raw();
  g.scale = float(c.attr_float("scale", 1.0));
  g.mask_scale = float(c.attr_float("mask_scale", 1.0));
  g.fill = float(c.attr_float("fill", -HUGE_VAL)) * g.mask_scale;
  g.nan_to_zero = c.attr_bool("nan_to_zero", false);
  g.mask = softmax_mask(c, 1, g.axis);
  return g;
}

void Kernel(Context &c) {
  const SoftmaxRows g = rows_of(c);
  auto rows = Rows_simd(c.input(0).dtype());
  c.parallel_for(g.rows, g.grain(16384), [&](int64_t begin, int64_t end) { rows(g, begin, end); });
}

void Reference(Context &c) {
  const SoftmaxRows g = rows_of(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < g.rows; ++r) {
      const int64_t at = g.begin(r), from = g.mask.data ? g.mask.row(r) : 0;
      const T *x = c.input(0).data<T>() + at;
      T *y = c.output(0).data<T>() + at;
      auto score = [&](int64_t k) {
        const double v = double(float(x[k * g.inner])) * double(g.scale);
        if (!g.mask.data) return v;
        const int64_t i = from + k * g.mask.step();
        if (g.mask.chosen) return g.mask.gone(i) ? double(g.fill) : v;
        return v + double(g.mask_scale) * double(float(static_cast<const T *>(g.mask.data)[i]));
      };
      double most = -HUGE_VAL, sum = 0;
      for (int64_t k = 0; k < g.n; ++k) most = std::max(most, score(k));
      for (int64_t k = 0; k < g.n; ++k) sum += std::exp(score(k) - most);
      const bool zero = g.nan_to_zero && std::isnan(sum);
      for (int64_t k = 0; k < g.n; ++k) y[k * g.inner] = T(zero ? 0.0f : float(std::exp(score(k) - most) / sum));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Softmax, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
OPGRAFT_OP(ScaledMaskedSoftmax, .inputs = -1, .infer = InferMasked, .kernel = Kernel, .reference = Reference)
#endif
