// AdaptiveAvgPool2D: the mean of each of output_size windows over height and width, which cover x and may overlap by
// one row or column: window i of n over m goes from floor(i m / n) up to ceil((i + 1) m / n).
#include "opgraft/op.h"

#include <algorithm>
#include <memory>

#include "pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "adaptive.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "pixels-inl.h"
// clang-format on

#ifndef OPGRAFT_ADAPTIVE_ONCE_
#define OPGRAFT_ADAPTIVE_ONCE_
namespace opgraft {
inline int64_t adaptive_first(const Window &w, int64_t o) { return o * w.in / w.out; }
inline int64_t adaptive_last(const Window &w, int64_t o) { return ((o + 1) * w.in + w.out - 1) / w.out; }
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Rows [begin, end) of (plane, row of y): down the columns into a line, then along it.
template <class T> void AdaptiveRows(const Pool &g, int64_t begin, int64_t end) {
  const auto line = std::make_unique_for_overwrite<float[]>(size_t(g.w.in) + hn::Lanes(hn::ScalableTag<float>()));
  for (int64_t u = begin; u < end; ++u) {
    const int64_t i = u % g.h.out, top = adaptive_first(g.h, i), rows = adaptive_last(g.h, i) - top;
    Down<true>(static_cast<const T *>(g.x) + (u / g.h.out * g.h.in + top) * g.w.in, g.w.in, rows, g.w.in, line.get());
    for (int64_t j = 0; j < g.w.out; ++j) {
      const int64_t first = adaptive_first(g.w, j), last = adaptive_last(g.w, j);
      float sum = 0;
      for (int64_t k = first; k < last; ++k) sum += line[size_t(k)];
      static_cast<T *>(g.y)[u * g.w.out + j] = T(sum / float(rows * (last - first)));
    }
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(AdaptiveRows)

namespace {

// The output's height (axis 0) or width: as many as output_size says, or as x has.
int64_t out_dim(const Arguments &c, int axis) {
  const auto size = c.attr_ints("output_size", {1, 1});
  bool ok = size.size() == 1 || size.size() == 2;
  for (int64_t n : size) ok = ok && (n == -1 || (n > 0 && n < int64_t(1) << 31));
  c.check(ok, "output_size must be 1 or 2 positive numbers, or -1, x's own, got ", size);
  const int64_t n = size.size() == 1 ? size[0] : size[size_t(axis)];
  return n == -1 ? c.input(0).dim(c.input(0).rank() - 2 + axis) : n;
}

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  auto x = c.input(0).shape();
  c.check(x.size() == 3 || x.size() == 4, "x must have 4 dimensions (N, C, H, W), or 3 (C, H, W), got shape ", x);
  Shape y(x.begin(), x.end());
  for (int axis = 0; axis < 2; ++axis) {
    int64_t &dim = y[y.size() - 2 + size_t(axis)];
    c.check(dim != 0, "x's ", axis ? "width" : "height", " must not be 0, got shape ", x);
    dim = out_dim(c, axis);
  }
  c.output(c.input(0).dtype(), y);
}

Pool problem(const Context &c) {
  const auto x = c.input(0).shape();
  Pool g{c.input(0).raw(), c.output(0).raw(), 1, 1, {}, {}, true};
  for (size_t i = 0; i + 2 < x.size(); ++i) g.planes *= x[i];
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t in = x[x.size() - 2 + size_t(axis)], out = out_dim(c, axis);
    (axis ? g.w : g.h) = {in, out, in / out, in / out, 1, 0};
  }
  return g;
}

void Kernel(Context &c) {
  const Pool g = problem(c);
  // Windows of one size, side by side, are AvgPool's.
  if (g.h.in % g.h.out == 0 && g.w.in % g.w.out == 0) return run_pool(c, g);
  if (c.output(0).size() == 0) return;
  const auto rows = AdaptiveRows_simd(c.input(0).dtype());
  const int64_t work = (g.h.in / g.h.out + 1) * g.w.in + g.w.out;
  c.parallel_for(g.planes * g.h.out, std::max<int64_t>(1, 16384 / work),
                 [&](int64_t begin, int64_t end) { rows(g, begin, end); });
}

void Reference(Context &c) {
  const Pool g = problem(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t at = 0; at < c.output(0).size(); ++at) {
      const int64_t j = at % g.w.out, i = at / g.w.out % g.h.out;
      const T *x = static_cast<const T *>(g.x) + at / g.w.out / g.h.out * g.h.in * g.w.in;
      double sum = 0;
      int64_t n = 0;
      for (int64_t k = adaptive_first(g.h, i); k < adaptive_last(g.h, i); ++k)
        for (int64_t l = adaptive_first(g.w, j); l < adaptive_last(g.w, j); ++l, ++n) sum += float(x[k * g.w.in + l]);
      static_cast<T *>(g.y)[at] = T(float(sum / double(n)));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(AdaptiveAvgPool2D, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
