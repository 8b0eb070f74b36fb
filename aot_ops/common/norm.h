// What the normalisations share outside their kernels: the checks of parameters, and how rows are counted.
#pragma once

#include <algorithm>
#include <string>

#include "opgraft/op.h"

namespace opgraft {

// Input i is a parameter over the `last` trailing dimensions of input 0, `whole` (0: as many as it has itself), of its
// dtype; wide: or float32.
inline void check_params(InferContext &c, int i, const char *name, const char *whole, bool wide, int last = 0) {
  if (const int32_t t = c.input(0).dtype(), got = c.input(i).dtype(); wide && t != OPGRAFT_FLOAT32)
    c.check(got == t || got == OPGRAFT_FLOAT32,
            std::string(name) + ".dtype must be " + dtype_name(t) + " or float32, got " + dtype_name(got),
            OPGRAFT_INVALID_TYPE);
  else c.check_same_dtype(i, name, 0, whole);
  auto x = c.input(0).shape(), p = c.input(i).shape();
  if (last == 0) last = std::clamp(c.input(i).rank(), 1, c.input(0).rank());
  x = x.last(size_t(last));
  bool ok = p.size() == x.size();
  for (size_t j = 0; ok && j < p.size(); ++j) ok = p[j] < 0 || x[j] < 0 || p[j] == x[j];
  c.check(ok, std::string(name) + ".shape must be " + to_string(x) + ", got " + to_string(p));
}

// How many dimensions of input 0 a parameter, input i, stands for; without it one.
inline int trailing(const Arguments &c, int i) { return c.inputs() > i ? c.input(i).rank() : 1; }

inline int64_t row_count(const Arguments &c, int64_t n) { return n ? c.input(0).size() / n : 0; }

// Rows that are worth a hand-over to another thread: 16384 elements, at least 5 µs.
inline int64_t rows_grain(int64_t n) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(n, 1)); }

}  // namespace opgraft
