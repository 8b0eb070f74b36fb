// What the normalisations share outside their kernels: the checks of parameters, and how rows are counted.
#pragma once

#include <algorithm>
#include <string>

#include "aot_ops/common/ones.h"
#include "opgraft/op.h"

namespace opgraft {

// Input i is a parameter over the `last` trailing dimensions of input 0, `whole` (0: as many as it has itself), of its
// dtype; wide, as our own operators have it: or float32, and with ones before them.
inline void check_params(InferContext &c, int i, const char *name, const char *whole, bool wide, int last = 0) {
  if (const int32_t t = c.input(0).dtype(), got = c.input(i).dtype(); wide && t != OPGRAFT_FLOAT32) {
    if (got != t && got != OPGRAFT_FLOAT32)
      c.fail(OPGRAFT_INVALID_TYPE, name, ".dtype must be ", dtype_name(t), " or float32, got ", dtype_name(got));
  } else {
    c.check_same_dtype(i, name, 0, whole);
  }
  const auto x = c.input(0).shape(), given = c.input(i).shape();
  const auto own = wide && given.size() <= x.size() ? without_ones(given, last) : given;
  if (last == 0) last = std::clamp(int(own.size()), 1, c.input(0).rank());
  Shape want(given.begin(), given.end() - int64_t(own.size()));
  want.insert(want.end(), x.end() - last, x.end());
  c.check_shape(i, name, want);
}

// How many dimensions of input 0 a parameter, input i, stands for; without it one.
inline int trailing(const Arguments &c, int i) {
  return c.inputs() > i ? int(without_ones(c.input(i).shape()).size()) : 1;
}

// Input 0's shape with ones from dimension `axis` on: that of statistics.
inline Shape rows_shape(const Arguments &c, int axis) {
  auto x = c.input(0).shape();
  Shape s(x.begin(), x.end());
  std::fill(s.begin() + axis, s.end(), 1);
  return s;
}

// Whether gamma (and beta), input i where there is one, is float32, whatever x is.
inline bool wide_params(const Context &c, int i) { return c.inputs() > i && c.input(i).dtype() == OPGRAFT_FLOAT32; }

inline int64_t row_count(const Arguments &c, int64_t n) { return n ? c.input(0).size() / n : 0; }

// Rows that are worth a hand-over to another thread: 16384 elements, at least 5 µs.
inline int64_t rows_grain(int64_t n) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(n, 1)); }

// What the scalar twins share. Element i of a parameter, `none` without it.
template <class T> double param(const void *p, bool wide, int64_t i, double none) {
  if (!p) return none;
  return wide ? double(static_cast<const float *>(p)[i]) : double(float(static_cast<const T *>(p)[i]));
}

// Row r as it is normalised: x's, or the sum with the residual, which it stores.
template <class T, class Rows> const T *normalised_row(const Rows &g, int64_t r) {
  const T *x = static_cast<const T *>(g.x) + r * g.n;
  if (!g.residual) return x;
  const T *residual = static_cast<const T *>(g.residual) + r * g.n;
  T *sum = static_cast<T *>(g.sum) + r * g.n;
  for (int64_t i = 0; i < g.n; ++i) sum[i] = T(float(x[i]) + float(residual[i]));
  return sum;
}

}  // namespace opgraft
