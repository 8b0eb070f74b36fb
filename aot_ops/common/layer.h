// What the operators of layers, y = act(x W^T + bias), know of x, input 0, of a weight and of a bias.
#pragma once

#include <algorithm>
#include <string>

#include "aot_ops/common/gemm.h"
#include "aot_ops/common/ones.h"
#include "opgraft/op.h"

namespace opgraft {

// N and K of a weight as its orientation says.
inline bool transposed(const Arguments &c) { return c.attr_bool("transpose_b", true); }
inline int64_t weight_n(const Arguments &c, int weight) { return c.input(weight).dim(transposed(c) ? 0 : 1); }
inline int64_t weight_k(const Arguments &c, int weight) { return c.input(weight).dim(transposed(c) ? 1 : 0); }

// Checks x and a weight; -> the product's shape.
inline Shape check_layer(const InferContext &c, int weight, const std::string &name) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(weight, name.c_str(), 0, "x");
  const auto x = c.input(0).shape(), w = c.input(weight).shape();
  c.check(!x.empty(), "x must have at least 1 dimension, got shape ()");
  c.check(w.size() == 2, name, " must have 2 dimensions, got shape ", w);
  const int64_t k = weight_k(c, weight);
  c.check(may_equal(k, x.back()), "x's last dimension must equal ", name, "'s K of ", k, ", got ", x.back());
  Shape out(x.begin(), x.end());
  out.back() = weight_n(c, weight);
  return out;
}

// (n,), or with ones before it, as it broadcasts to the product.
inline void check_bias(const InferContext &c, int bias, const std::string &name, int64_t n) {
  c.check_same_dtype(bias, name.c_str(), 0, "x");
  const auto b = c.input(bias).shape();
  c.check(int(b.size()) <= std::max(c.input(0).rank(), 1) && without_ones(b, 1).size() == 1 && may_equal(b.back(), n),
          name, ".shape must be (", n, ",), got ", b);
}

// Of x, a weight and a bias behind it, if there is one, with an activation; -> the product's shape.
inline Shape check_dense(const InferContext &c, bool has_bias) {
  Shape out = check_layer(c, 1, "weight");
  if (has_bias) check_bias(c, 2, "bias", out.back());
  activation_from_name(c, c.attr_string("activation", "none"));
  return out;
}
inline void infer_dense(InferContext &c) {
  c.check_inputs(2, 3);
  c.output(c.input(0).dtype(), check_dense(c, c.inputs() > 2));
}

}  // namespace opgraft
