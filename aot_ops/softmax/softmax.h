// What Softmax and its gradients share: how rows lie along the axis, and a mask that broadcasts.
#pragma once

#include <algorithm>
#include <string>

#include "opgraft/op.h"

namespace opgraft {

// Rows of n elements, `inner` apart.
struct SoftmaxAxis {
  int axis;
  int64_t n, inner, rows;
  // Where row r begins.
  int64_t begin(int64_t r) const { return r / inner * n * inner + r % inner; }
  // Rows worth a hand-over to another thread, about 10 µs of `elements`; a vector's worth of columns at least.
  int64_t grain(int64_t elements) const {
    return std::max(inner == 1 ? 1 : int64_t(16), elements / std::max(n, int64_t(1)));
  }
};

inline SoftmaxAxis softmax_axis(const Context &c, const char *name) {
  const auto x = c.input(0).shape();
  const int axis = c.axis(c.attr_int(name, -1), int(x.size()), name);
  const int64_t n = x[size_t(axis)];
  return {axis, n, element_count(x.subspan(size_t(axis) + 1)), n ? c.input(0).size() / n : 0};
}

// Input i, a mask, broadcasts to input 0, which is called x.
inline void check_mask(InferContext &c, int i, const char *x) {
  c.check_same_dtype(i, "mask", 0, x);
  auto s = c.input(0).shape(), m = c.input(i).shape();
  bool ok = m.size() <= s.size();
  for (size_t k = 0; ok && k < m.size(); ++k) {
    const int64_t a = m[m.size() - 1 - k], b = s[s.size() - 1 - k];
    ok = a == 1 || may_equal(a, b);
  }
  c.check(ok, "mask.shape must broadcast to ", x, ".shape ", s, ", got ", m);
}

// The mask's strides over x's dimensions, 0 where it is broadcast.
inline void mask_strides(std::span<const int64_t> x, std::span<const int64_t> mask, int64_t *stride) {
  std::fill_n(stride, x.size(), 0);
  int64_t step = 1;
  for (size_t k = 0; k < mask.size(); ++k) {
    const int64_t n = mask[mask.size() - 1 - k];
    if (n != 1) stride[x.size() - 1 - k] = step;
    step *= n;
  }
}

}  // namespace opgraft
