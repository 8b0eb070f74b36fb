// What softmaxes share: how rows lie along their axis, and the shape of the result.
#pragma once

#include <algorithm>
#include <span>

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

inline void infer_softmax(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.axis(c.attr_int("axis", -1), c.input(0).rank());
  c.output(c.input(0).dtype(), c.input(0).shape());
}

}  // namespace opgraft
