// LogSoftmax: y = x - max x - log of the sum of e^(x - max x) along one axis. Half types compute in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "aot_ops/common/softmax_axis.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "log_softmax.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/contrib/math/math-inl.h"
#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/norm-inl.h"
// clang-format on

#ifndef OPGRAFT_LOG_SOFTMAX_ONCE_
#define OPGRAFT_LOG_SOFTMAX_ONCE_
namespace opgraft {
struct LogSoftmaxRows : SoftmaxAxis {
  const void *x;
  void *y;
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Of a sum of at least 1, or NaN, whose bits Highway's would take for a number.
template <class D, class V = hn::Vec<D>> HWY_INLINE V LogOfSum(D d, V sum) {
  return hn::IfThenElse(hn::IsNaN(sum), sum, hn::Log(d, sum));
}

// f(vector i, chain) for all whole vectors, in chains that do not wait for each other.
inline constexpr int kChains = 4;
template <class F> HWY_INLINE void InChains(int64_t whole, int64_t lanes, const F &f) {
  int64_t i = 0;
  for (; i + kChains * lanes <= whole; i += kChains * lanes) {
#pragma GCC unroll 4
    for (int j = 0; j < kChains; ++j) f(i + j * lanes, j);
  }
  for (; i < whole; i += lanes) f(i, 0);
}

template <class T> HWY_INLINE void Row(const T *x, T *y, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), whole = n / lanes * lanes;
  const size_t rest = size_t(n - whole);
  const auto inside = hn::FirstN(d, rest);
  const auto lowest = hn::Set(d, -HUGE_VALF);
  const auto tail = rest ? hn::IfThenElse(inside, LoadF32N(d, x + whole, rest), lowest) : lowest;
  hn::Vec<decltype(d)> of[kChains] = {tail, lowest, lowest, lowest};
  InChains(whole, lanes, [&](int64_t i, int j) HWY_ATTR { of[j] = hn::Max(of[j], LoadF32(d, x + i)); });
  const auto most = hn::MaxOfLanes(d, hn::Max(hn::Max(of[0], of[1]), hn::Max(of[2], of[3])));
  for (auto &v : of) v = hn::Zero(d);
  if (rest) of[0] = hn::IfThenElseZero(inside, ExpBelow0(d, hn::Sub(tail, most)));
  InChains(whole, lanes,
           [&](int64_t i, int j) HWY_ATTR { of[j] = hn::Add(of[j], ExpBelow0(d, hn::Sub(LoadF32(d, x + i), most))); });
  const auto log = LogOfSum(d, hn::SumOfLanes(d, hn::Add(hn::Add(of[0], of[1]), hn::Add(of[2], of[3]))));
  for (int64_t i = 0; i < whole; i += lanes) StoreF32(hn::Sub(hn::Sub(LoadF32(d, x + i), most), log), d, y + i);
  if (rest) StoreF32N(hn::Sub(hn::Sub(tail, most), log), d, y + whole, rest);
}

// `width` neighbouring rows, elements of which are `stride` apart: a vector, or less than one.
template <class T, class... Count>
HWY_INLINE void Columns(const T *x, T *y, int64_t n, int64_t stride, Count... width) {
  const hn::ScalableTag<float> d;
  const auto load = [&](int64_t k) HWY_ATTR { return LoadSome(d, x + k * stride, width...); };
  auto most = load(0);
  for (int64_t k = 1; k < n; ++k) most = hn::Max(most, load(k));
  auto sum = hn::Zero(d);
  for (int64_t k = 0; k < n; ++k) sum = hn::Add(sum, ExpBelow0(d, hn::Sub(load(k), most)));
  const auto log = LogOfSum(d, sum);
  for (int64_t k = 0; k < n; ++k) {
    const auto v = hn::Sub(hn::Sub(load(k), most), log);
    if constexpr (sizeof...(Count) > 0) StoreF32N(v, d, y + k * stride, width...);
    else StoreF32(v, d, y + k * stride);
  }
}

// Rows [begin, end).
template <class T> void Rows(const LogSoftmaxRows &g, int64_t begin, int64_t end) {
  const int64_t lanes = int64_t(hn::Lanes(hn::ScalableTag<float>()));
  for (int64_t r = begin, width = 1; r < end; r += width) {
    const T *x = static_cast<const T *>(g.x) + g.begin(r);
    T *y = static_cast<T *>(g.y) + g.begin(r);
    if (g.inner == 1) {
      Row(x, y, g.n);
      continue;
    }
    width = std::min({lanes, g.inner - r % g.inner, end - r});
    if (width == lanes) Columns(x, y, g.n, g.inner);
    else Columns(x, y, g.n, g.inner, size_t(width));
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Rows)

namespace {

LogSoftmaxRows rows_of(const Context &c) { return {softmax_axis(c, "axis"), c.input(0).raw(), c.output(0).raw()}; }

void Kernel(Context &c) {
  const LogSoftmaxRows g = rows_of(c);
  const auto rows = Rows_simd(c.input(0).dtype());
  c.parallel_for(g.rows, g.grain(16384), [&](int64_t begin, int64_t end) { rows(g, begin, end); });
}

void Reference(Context &c) {
  const LogSoftmaxRows g = rows_of(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < g.rows; ++r) {
      const T *x = c.input(0).data<T>() + g.begin(r);
      T *y = c.output(0).data<T>() + g.begin(r);
      double most = -HUGE_VAL, sum = 0;
      for (int64_t k = 0; k < g.n; ++k) most = std::max(most, double(float(x[k * g.inner])));
      for (int64_t k = 0; k < g.n; ++k) sum += std::exp(double(float(x[k * g.inner])) - most);
      for (int64_t k = 0; k < g.n; ++k) y[k * g.inner] = T(float(double(float(x[k * g.inner])) - most - std::log(sum)));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(LogSoftmax, .inputs = 1, .infer = infer_softmax, .kernel = Kernel, .reference = Reference)
#endif
