// MaxPool and AvgPool: the largest element and the mean of each window over height and width, NCHW or NHWC.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pool.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "pixels-inl.h"
#include "planes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

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
  return g.mean ? sum / (g.rows(i, rows[1] - rows[0]) * g.count(j, last - first)) : most;
}

template <class T> void PoolRows(const Pool &g, int64_t begin, int64_t end) {
  if (g.channels > 1) return g.mean ? Pixels<true, T>(g, begin, end) : Pixels<false, T>(g, begin, end);
  if (g.mean && g.w.out == 1 && g.w.before == 0 && g.w.kernel >= g.w.in) return Whole<T>(g, begin, end);
  if (three_wide(g)) return ThreeWide<T>(g, begin, end);
  // A window, and its steps, may be far wider than x: the line would be next to nothing but padding.
  if ((g.w.out - 1) * g.w.stride + g.w.kernel <= 2 * g.w.in + 4096)
    return g.mean ? Separable<true, T>(g, begin, end) : Separable<false, T>(g, begin, end);
  for (int64_t u = begin; u < end; ++u) {
    int64_t rows[2];
    elements_in(g.h, u % g.h.out, rows, rows + 1);
    const T *x = static_cast<const T *>(g.x) + u / g.h.out * g.h.in * g.w.in;
    for (int64_t j = 0; j < g.w.out; ++j) static_cast<T *>(g.y)[u * g.w.out + j] = T(One(g, x, u % g.h.out, j, rows));
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(PoolRows)

namespace {

enum Kind { kMax, kMean, kPaddedMax };

// Numbers of PaddedMaxPool, depth first.
int64_t padded_number(const Arguments &c, const char *name, int64_t least, int axis) {
  const auto v = c.attr_ints(name, std::vector<int64_t>(3, least));
  bool ok = v.size() == 3;
  for (int64_t i : v) ok = ok && i >= least && i < int64_t(1) << 31;
  c.check(ok && v[0] == least, name, " must be 3 numbers, the first of them ", least,
          ", the others at least that, got ", v);
  return v[size_t(axis) + 1];
}

template <Kind kind> std::string mode_of(const Arguments &c) {
  return kind == kPaddedMax ? "pad" : window_mode(c, {"valid", "same"});
}
template <Kind kind> bool ceil_mode(const Arguments &c) {
  return kind == kPaddedMax && c.attr_bool("ceil_mode", false);
}
// Height or width, and its padding on both sides. Sizes of four numbers have those of N and C first in either layout,
// as MindSpore's primitives.
template <Kind kind> Window window(const Arguments &c, bool nhwc, int axis, int64_t *pad) {
  const int64_t in = c.input(0).dim((nhwc ? 1 : 2) + axis);
  *pad = 0;
  if (kind != kPaddedMax)
    return {in, 0, window_pair(c, "kernel_size", {1})[axis], window_pair(c, "strides", {1})[axis], 1, 0};
  const Window w{in, 0, padded_number(c, "ksize", 1, axis), padded_number(c, "strides", 1, axis), 1, 0};
  *pad = padded_number(c, "pads", 0, axis);
  c.check(2 * *pad <= w.kernel, "the padding of both sides must be at most the window of ", w.kernel, ", got ",
          2 * *pad);
  return w;
}

template <Kind kind> void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  const bool nhwc = channels_last(c);
  check_image(c, nhwc);
  auto x = c.input(0).shape();
  Shape y(x.begin(), x.end());
  for (int axis = 0; axis < 2; ++axis) {
    int64_t pad;
    const Window w = window<kind>(c, nhwc, axis, &pad);
    y[size_t((nhwc ? 1 : 2) + axis)] =
        window_dim(c, w, mode_of<kind>(c), pad, pad, axis ? "width" : "height", ceil_mode<kind>(c));
  }
  c.output(c.input(0).dtype(), y);
}

template <Kind kind> Pool problem(const Context &c) {
  auto x = c.input(0).shape();
  const bool nhwc = channels_last(c);
  Pool g{c.input(0).raw(), c.output(0).raw(), nhwc ? x[0] : x[0] * x[1], nhwc ? x[3] : 1, {}, {}, kind == kMean};
  for (int axis = 0; axis < 2; ++axis) {
    int64_t pad;
    Window &w = axis ? g.w : g.h;
    w = window<kind>(c, nhwc, axis, &pad);
    fit_window(w, mode_of<kind>(c), pad, pad, ceil_mode<kind>(c));
  }
  cut(g);
  return g;
}

template <Kind kind> void Kernel(Context &c) {
  const Pool g = problem<kind>(c);
  if (kind != kPaddedMax || (g.h.in && g.w.in)) return run_pool(c, g);
  // Nothing but padding, which never wins.
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(static_cast<T *>(g.y), c.output(0).size(), T(-HUGE_VALF));
  });
}

template <Kind kind> void Reference(Context &c) {
  const Pool g = problem<kind>(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t at = 0; at < c.output(0).size(); ++at) {
      const int64_t pixel = at / g.channels, j = pixel % g.w.out, i = pixel / g.w.out % g.h.out;
      const T *plane = static_cast<const T *>(g.x) + pixel / g.w.out / g.h.out * g.h.in * g.w.in * g.channels;
      double sum = 0, most = -HUGE_VAL;
      int64_t n = 0;
      for (int64_t k = 0; k < g.h.kernel; ++k)
        for (int64_t l = 0; l < g.w.kernel; ++l) {
          const int64_t row = g.h.at(i, k), column = g.w.at(j, l);
          if (row < 0 || row >= g.h.in || column < 0 || column >= g.w.in) continue;
          const double v = float(plane[(row * g.w.in + column) * g.channels + at % g.channels]);
          sum += v;
          most = v > most || v != v ? v : most;
          ++n;
        }
      static_cast<T *>(g.y)[at] = T(float(g.mean ? sum / double(n) : most));
    }
  });
}

}  // namespace

void run_pool(const Context &c, const Pool &g) {
  const auto rows = PoolRows_simd(c.input(0).dtype());
  if (c.output(0).size() == 0) return;
  const double work = double(g.w.out) * double(g.part) * double(g.h.kernel) * double(g.w.kernel);
  c.parallel_for(g.planes * g.h.out * g.parts(), std::max<int64_t>(1, int64_t(16384 / work)),
                 [&](int64_t begin, int64_t end) { rows(g, begin, end); });
}

}  // namespace opgraft

using namespace opgraft;
#define OPGRAFT_POOL(Name, kind) \
  OPGRAFT_OP(Name, .inputs = 1, .infer = Infer<kind>, .kernel = Kernel<kind>, .reference = Reference<kind>)
OPGRAFT_POOL(MaxPool, kMax)
OPGRAFT_POOL(AvgPool, kMean)
OPGRAFT_POOL(PaddedMaxPool, kPaddedMax)
#endif
