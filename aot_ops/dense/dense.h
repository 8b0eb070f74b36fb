// What Dense, DenseAdd, DenseQKV and DenseSwiGLU know of x, input 0, and of a weight. Include it in the HWY_ONCE part
// of an op's source, after product-inl.h and skinny-inl.h.
#pragma once

#include "aot_ops/common/layer.h"
#include "aot_ops/common/product-host.h"

namespace opgraft {

// x times a weight.
inline GemmProblem layer(const Arguments &c, int weight) {
  const int64_t n = weight_n(c, weight), k = weight_k(c, weight);
  const auto x = c.input(0).shape();
  const bool t = transposed(c);
  return {c.input(0).dtype(),       element_count(x.first(x.size() - 1)),          n,      k,
          {c.input(0).raw(), k, 1}, {c.input(weight).raw(), t ? 1 : n, t ? k : 1}, nullptr};
}

}  // namespace opgraft
