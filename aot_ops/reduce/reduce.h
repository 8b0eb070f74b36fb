// What the reductions share: which dimensions are reduced, the output's shape, and the two walks over x.
#pragma once

#include "aot_ops/common/strided.h"
#include "opgraft/op.h"

namespace opgraft {

enum ReduceOp { kMean, kSum, kMax, kMin };

// Bit i: dimension i is reduced. An empty `axis` reduces all, none with `skip_mode`.
inline uint32_t reduced_dims(const Arguments &a) {
  const int rank = a.input(0).rank();
  uint32_t bits = 0;
  const auto axes = a.attr_ints("axis");
  for (int64_t v : axes) bits |= 1u << a.axis(v, rank);
  return axes.empty() && !a.attr_bool("skip_mode", false) ? (1u << rank) - 1 : bits;
}

template <ReduceOp op> void infer_shape(InferContext &c, int32_t dtype) {
  const uint32_t bits = reduced_dims(c);
  const bool keep = c.attr_bool("keep_dims", false);
  Shape out;
  bool reduces_none = false, empty = false;  // a reduced dimension, a kept one is 0
  for (int i = 0; i < c.input(0).rank(); ++i) {
    const int64_t dim = c.input(0).dim(i);
    if (!(bits >> i & 1)) {
      out.push_back(dim);
      empty |= dim == 0;
      continue;
    }
    reduces_none |= dim == 0;
    if (keep) out.push_back(1);
  }
  if ((op == kMax || op == kMin) && reduces_none && !empty)
    c.fail(OPGRAFT_INVALID_VALUE, "the reduced axes hold no element, shape ", c.input(0).shape());
  c.output(dtype, out);
}

// Kept dimensions and reduced dimensions of x as two walks; the last row belongs to one of them.
struct Walks {
  Strided<1> kept, reduced;
  explicit Walks(const Arguments &a) {
    const TensorView x = a.input(0);
    const uint32_t bits = reduced_dims(a);
    Shape stride(size_t(x.rank()) + 1, 1);
    for (int i = x.rank() - 1; i >= 0; --i) stride[size_t(i)] = stride[size_t(i) + 1] * x.dim(i);
    for (int i = 0; i < x.rank(); ++i) (bits >> i & 1 ? reduced : kept).push(x.dim(i), {stride[size_t(i) + 1]});
    kept.finish();
    reduced.finish();
  }
};

void KernelReduceSum(Context &c);  // of ReduceSum

}  // namespace opgraft
