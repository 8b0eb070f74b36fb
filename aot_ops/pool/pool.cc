// MaxPool and AvgPool: the largest element and the mean of each window over height and width, NCHW.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "aot_ops/common/window.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pool.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/window-inl.h"
// clang-format on

#ifndef OPGRAFT_POOL_ONCE_
#define OPGRAFT_POOL_ONCE_
namespace opgraft {
struct Pool {
  const void *x;
  void *y;
  int64_t planes;
  Window h, w;
  bool mean;
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// a, or b where it is larger or a is no NaN and b is.
template <class V> HWY_INLINE V Larger(V a, V b) { return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a); }

// One window; first, last: of its rows and columns.
template <class T> float One(const Pool &g, const T *x, int64_t i, int64_t j, int64_t rows[2]) {
  int64_t first, last;
  elements_in(g.w, j, &first, &last);
  float sum = 0, most = -HUGE_VALF;
  for (int64_t k = rows[0]; k < rows[1]; ++k)
    for (int64_t l = first; l < last; ++l) {
      const float v = float(x[g.h.at(i, k) * g.w.in + g.w.at(j, l)]);
      sum += v;
      most = v > most || v != v ? v : most;
    }
  return g.mean ? sum / float((rows[1] - rows[0]) * (last - first)) : most;
}

// Rows [begin, end) of (plane, row of y).
template <class T> void PoolRows(const Pool &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  HWY_ALIGN float gathered[hn::MaxLanes(d)];
  // Windows of these columns lie wholly within a row of x.
  const int64_t inner0 = std::min(g.w.out, (g.w.before + g.w.stride - 1) / g.w.stride);
  const int64_t room = g.w.in + g.w.before - g.w.kernel;
  const int64_t inner1 = room < 0 ? inner0 : std::clamp(room / g.w.stride + 1, inner0, g.w.out);
  for (int64_t u = begin; u < end; ++u) {
    const int64_t i = u % g.h.out;
    const T *x = static_cast<const T *>(g.x) + u / g.h.out * g.h.in * g.w.in;
    T *y = static_cast<T *>(g.y) + u * g.w.out;
    int64_t rows[2];
    elements_in(g.h, i, rows, rows + 1);
    int64_t j = 0;
    for (; j < inner0; ++j) y[j] = T(One(g, x, i, j, rows));
    const auto count = hn::Set(d, float((rows[1] - rows[0]) * g.w.kernel));
    for (; j < inner1 && inner1 - inner0 >= lanes; j += lanes) {
      j = std::min(j, inner1 - lanes);  // the last vector lies over the one before
      auto v = hn::Set(d, g.mean ? 0.0f : -HUGE_VALF);
      const bool second = g.w.stride == 2 && g.w.at(j, g.w.kernel - 1) + 2 * lanes <= g.w.in;
      for (int64_t k = rows[0]; k < rows[1]; ++k)
        for (int64_t l = 0; l < g.w.kernel; ++l) {
          const T *from = x + g.h.at(i, k) * g.w.in + g.w.at(j, l);
          auto e = v;
          if (g.w.stride == 1) {
            e = LoadF32(d, from);
          } else if (second) {
            e = EverySecond(d, from);
          } else {
            Spread(from, g.w.stride, lanes, gathered);
            e = hn::Load(d, gathered);
          }
          v = g.mean ? hn::Add(v, e) : Larger(v, e);
        }
      StoreF32(g.mean ? hn::Div(v, count) : v, d, y + j);
    }
    for (; j < g.w.out; ++j) y[j] = T(One(g, x, i, j, rows));
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(PoolRows)

namespace {

Window window(const Arguments &c, int axis) {
  return {c.input(0).dim(2 + axis),
          0,
          window_pair(c, "kernel_size", {1})[axis],
          window_pair(c, "strides", {1})[axis],
          1,
          0};
}

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  check_nchw(c);
  const std::string mode = window_mode(c, {"valid", "same"});
  c.output(c.input(0).dtype(),
           Shape{c.input(0).dim(0), c.input(0).dim(1), window_dim(c, window(c, 0), mode, 0, 0, "height"),
                 window_dim(c, window(c, 1), mode, 0, 0, "width")});
}

template <bool mean> Pool problem(const Context &c) {
  Pool g{c.input(0).raw(), c.output(0).raw(), c.input(0).dim(0) * c.input(0).dim(1), window(c, 0), window(c, 1), mean};
  const std::string mode = window_mode(c, {"valid", "same"});
  fit_window(g.h, mode, 0, 0);
  fit_window(g.w, mode, 0, 0);
  return g;
}

template <bool mean> void Kernel(Context &c) {
  const Pool g = problem<mean>(c);
  const auto rows = PoolRows_simd(c.input(0).dtype());
  const int64_t work = g.w.out * g.h.kernel * g.w.kernel;
  c.parallel_for(g.planes * g.h.out, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, work)),
                 [&](int64_t begin, int64_t end) { rows(g, begin, end); });
}

template <bool mean> void Reference(Context &c) {
  const Pool g = problem<mean>(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t at = 0; at < c.output(0).size(); ++at) {
      const int64_t j = at % g.w.out, i = at / g.w.out % g.h.out, plane = at / g.w.out / g.h.out;
      double sum = 0, most = -HUGE_VAL;
      int64_t n = 0;
      for (int64_t k = 0; k < g.h.kernel; ++k)
        for (int64_t l = 0; l < g.w.kernel; ++l) {
          const int64_t row = g.h.at(i, k), column = g.w.at(j, l);
          if (row < 0 || row >= g.h.in || column < 0 || column >= g.w.in) continue;
          const double v = float(static_cast<const T *>(g.x)[(plane * g.h.in + row) * g.w.in + column]);
          sum += v;
          most = v > most || v != v ? v : most;
          ++n;
        }
      static_cast<T *>(g.y)[at] = T(float(mean ? sum / double(n) : most));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(MaxPool, .inputs = 1, .infer = Infer, .kernel = Kernel<false>, .reference = Reference<false>)
OPGRAFT_OP(AvgPool, .inputs = 1, .infer = Infer, .kernel = Kernel<true>, .reference = Reference<true>)
#endif
