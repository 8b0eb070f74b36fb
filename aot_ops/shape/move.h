// Copies of elements of any dtype along a strided walk; shared by the operators of this folder.
#pragma once

#include "aot_ops/common/strided.h"
#include "opgraft/op.h"

namespace opgraft {

inline int64_t element_bytes(const TensorView &t) { return int64_t(dtype_size(t.dtype())); }

inline void check_any_dtype(const Arguments &a, int i, const char *name) {
  if (dtype_size(a.input(i).dtype()) == 0) a.fail(OPGRAFT_INVALID_TYPE, name, ".dtype is unknown");
}

// n elements from x, `step` apart, to consecutive places.
template <class U> void copy_row(const U *x, int64_t step, U *y, int64_t n) {
  if (step == 1) std::memcpy(y, x, size_t(n) * sizeof(U));
  else if (step == 0)
    for (int64_t i = 0; i < n; ++i) y[i] = *x;
  else
    for (int64_t i = 0; i < n; ++i) y[i] = x[i * step];
}

// The output takes its elements from `x`, which points at the walk's origin in the input.
template <class U> void copy_elements(Context &c, const Strided<1> &walk, const U *x, U *y) {
  c.parallel_for(walk.total, 16384, [&](int64_t begin, int64_t end) {
    walk.walk(begin, end,
              [&](const int64_t(&at)[1], int64_t out, int64_t n) { copy_row(x + at[0], walk.step[0], y + out, n); });
  });
}

inline void copy_strided(Context &c, const Strided<1> &walk, int64_t origin = 0) {
  const TensorView x = c.input(0), y = c.output(0);
  switch (element_bytes(x)) {
    case 1: return copy_elements(c, walk, x.data<uint8_t>() + origin, y.data<uint8_t>());
    case 2: return copy_elements(c, walk, x.data<uint16_t>() + origin, y.data<uint16_t>());
    case 4: return copy_elements(c, walk, x.data<uint32_t>() + origin, y.data<uint32_t>());
    default: return copy_elements(c, walk, x.data<uint64_t>() + origin, y.data<uint64_t>());
  }
}

inline Shape strides_of(std::span<const int64_t> dims) {
  Shape s(dims.size());
  int64_t n = 1;
  for (size_t i = dims.size(); i-- > 0; n *= dims[i]) s[i] = n;
  return s;
}

// The scalar twins: element `o` of the output is element source(index of o) of the input.
template <class F> void move_one_by_one(Context &c, F &&source) {
  const TensorView x = c.input(0), y = c.output(0);
  const size_t bytes = size_t(element_bytes(y));
  Shape index(size_t(y.rank()));
  for (int64_t o = 0; o < y.size(); ++o) {
    int64_t rest = o;
    for (int i = y.rank() - 1; i >= 0; rest /= y.dim(i--)) index[size_t(i)] = rest % y.dim(i);
    std::memcpy(y.data<char>() + size_t(o) * bytes, x.data<char>() + size_t(source(index)) * bytes, bytes);
  }
}

}  // namespace opgraft
