// Softmax: y = e^(s - max s) / sum of e^(s - max s) along one axis, of s = x or of s = x scale + mask. Half types
// compute in float32.
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
// clang-format on

#ifndef OPGRAFT_SOFTMAX_ROWS_
#define OPGRAFT_SOFTMAX_ROWS_
namespace opgraft {
// A mask of x's rank, with strides of 0 where it is broadcast.
struct SoftmaxRows : SoftmaxAxis {
  const void *x, *mask;  // mask: or null
  void *y;
  float scale;
  int rank;
  int64_t dims[OPGRAFT_MAX_RANK], stride[OPGRAFT_MAX_RANK];

  // Where the mask begins for row r of outer * inner.
  int64_t mask_of(int64_t r) const {
    int64_t at = 0;
    for (int i = rank - 1; i >= 0; --i) {
      if (i == axis) continue;
      at += r % dims[i] * stride[i];
      r /= dims[i];
    }
    return at;
  }
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

inline constexpr int kTogether = 2;

// kRows contiguous rows of scores at(row, i) for a whole vector, at(row, i, rest) for the last elements; together,
// since a row alone waits for its maximum and its sum. float32 keeps the exponentials in y; half types compute them
// twice, as rounding them before the division would cost accuracy.
template <int kRows, class T, class At> HWY_INLINE void ContiguousRows(At at, T *y, int64_t n) {
  const hn::ScalableTag<float> d;
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
  for (int64_t i = 0; i < whole; i += lanes)
    for (int j = 0; j < kRows; ++j) most[j] = hn::Max(most[j], at(j, i));
  for (int j = 0; j < kRows; ++j) most[j] = hn::MaxOfLanes(d, most[j]);
  for (int64_t i = 0; i < whole; i += lanes)
    for (int j = 0; j < kRows; ++j) {
      const auto e = ExpBelow0(d, hn::Sub(at(j, i), most[j]));
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

template <int kRows, class T> void ScoreRows(const SoftmaxRows &g, int64_t r) {
  const hn::ScalableTag<float> d;
  const T *x = static_cast<const T *>(g.x) + r * g.n;
  T *y = static_cast<T *>(g.y) + r * g.n;
  const int64_t n = g.n;
  const auto scale = hn::Set(d, g.scale);
  const T *mask[kRows];
  if (g.mask)
    for (int j = 0; j < kRows; ++j) mask[j] = static_cast<const T *>(g.mask) + g.mask_of(r + j);
  if (!g.mask && g.scale == 1.0f) {
    ContiguousRows<kRows>([&](int j, int64_t i, auto... k) HWY_ATTR { return LoadSome(d, x + j * n + i, k...); }, y, n);
  } else if (!g.mask) {
    ContiguousRows<kRows>(
        [&](int j, int64_t i, auto... k) HWY_ATTR { return hn::Mul(LoadSome(d, x + j * n + i, k...), scale); }, y, n);
  } else if (g.stride[g.axis]) {
    ContiguousRows<kRows>(
        [&](int j, int64_t i, auto... k)
            HWY_ATTR { return hn::MulAdd(LoadSome(d, x + j * n + i, k...), scale, LoadSome(d, mask[j] + i, k...)); },
        y, n);
  } else {
    ContiguousRows<kRows>(
        [&](int j, int64_t i, auto... k)
            HWY_ATTR { return hn::MulAdd(LoadSome(d, x + j * n + i, k...), scale, hn::Set(d, float(*mask[j]))); },
        y, n);
  }
}

// Rows [begin, end) of the outer * inner rows.
template <class T> void Rows(const SoftmaxRows &g, int64_t begin, int64_t end) {
  if (g.inner == 1) {
    int64_t r = begin;
    for (; r + kTogether <= end; r += kTogether) ScoreRows<kTogether, T>(g, r);
    for (; r < end; ++r) ScoreRows<1, T>(g, r);
    return;
  }
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
    if (g.mask) {
      int64_t from[hn::MaxLanes(d)];
      for (int64_t i = 0; i < width; ++i) from[i] = g.mask_of(r + i);
      Columns(
          [&](int64_t k) HWY_ATTR {
            HWY_ALIGN float mask[hn::MaxLanes(d)] = {};
            for (int64_t i = 0; i < width; ++i)
              mask[i] = float(static_cast<const T *>(g.mask)[from[i] + k * g.stride[g.axis]]);
            return hn::MulAdd(load(k), scale, hn::Load(d, mask));
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
  auto dims = c.input(0).shape();
  g.rank = int(dims.size());
  g.x = c.input(0).raw();
  g.y = c.output(0).raw();
  g.scale = float(c.attr_float("scale", 1.0));
  std::copy(dims.begin(), dims.end(), g.dims);
  if (c.inputs() < 2) return g;
  g.mask = c.input(1).raw();
  mask_strides(dims, c.input(1).shape(), g.stride);
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
      const int64_t at = g.begin(r), from = g.mask ? g.mask_of(r) : 0;
      const T *x = c.input(0).data<T>() + at;
      T *y = c.output(0).data<T>() + at;
      auto score = [&](int64_t k) {
        const double v = double(float(x[k * g.inner])) * double(g.scale);
        return g.mask ? v + double(float(static_cast<const T *>(g.mask)[from + k * g.stride[g.axis]])) : v;
      };
      double most = -HUGE_VAL, sum = 0;
      for (int64_t k = 0; k < g.n; ++k) most = std::max(most, score(k));
      for (int64_t k = 0; k < g.n; ++k) sum += std::exp(score(k) - most);
      for (int64_t k = 0; k < g.n; ++k) y[k * g.inner] = T(float(std::exp(score(k) - most) / sum));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Softmax, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
OPGRAFT_OP(ScaledMaskedSoftmax, .inputs = -1, .infer = InferMasked, .kernel = Kernel, .reference = Reference)
#endif
