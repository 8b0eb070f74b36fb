// Dense: y = act(x W + bias), DenseAdd: y = act(x W + bias) + residual, over the last dimension of x. The bias may be
// left out; before a residual it is then a tensor without elements.
// Bias, activation and residual are applied while a tile of y is still in L1.
#include "opgraft/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dense.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"
#include "aot_ops/common/skinny-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/dense/dense.h"

namespace opgraft {
namespace {

enum { kX, kWeight, kBias, kResidual };

bool has_bias(const Arguments &c) {
  return c.inputs() > kBias && (c.inputs() <= kResidual || c.input(kBias).size() != 0);
}

void InferDenseAdd(InferContext &c) {
  Shape out = check_dense(c, has_bias(c));
  c.check_same_dtype(kResidual, "residual", kX, "x");
  auto r = c.input(kResidual).shape();
  bool ok = r.size() == out.size();
  for (size_t i = 0; ok && i < r.size(); ++i) {
    ok = may_equal(r[i], out[i]);
    if (out[i] < 0) out[i] = r[i];
  }
  c.check(ok, "residual.shape must equal the product's shape ", out, ", got ", r);
  c.output(c.input(kX).dtype(), out);
}

GemmProblem problem(const Context &c) {
  GemmProblem p = layer(c, kWeight);
  p.c = c.output(0).raw();
  p.packed = c.packed(kWeight);
  p.bias = has_bias(c) ? c.input(kBias).raw() : nullptr;
  p.residual = c.inputs() > kResidual ? c.input(kResidual).raw() : nullptr;
  p.activation = activation_from_name(c, c.attr_string("activation", "none"));
  return p;
}

uint64_t Workspace(InferContext &c) {
  const GemmProblem p = layer(c, kWeight);
  return product_workspace(p, product_kernels(p.dtype), c.input(kWeight).known());
}

uint64_t PackedBytes(InferContext &c, int input) {
  const GemmProblem p = layer(c, kWeight);
  return input == kWeight ? packed_bytes(p, product_kernels(p.dtype)) : 0;
}

void PackWeight(InferContext &c, int input, void *dst) {
  const GemmProblem p = layer(c, input);
  pack_b(p, product_kernels(p.dtype), dst);
}

void Kernel(Context &c) {
  const GemmProblem p = problem(c);
  run_product(c, p, product_kernels(p.dtype));
}
void Reference(Context &c) { reference_gemm(c, problem(c)); }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Dense, .inputs = -1, .infer = infer_dense, .kernel = Kernel, .reference = Reference, .workspace = Workspace,
           .packed_bytes = PackedBytes, .pack = PackWeight)
OPGRAFT_OP(DenseAdd, .inputs = 4, .infer = InferDenseAdd, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackWeight)
#endif
