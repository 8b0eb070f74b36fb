// Dense: y = act(x W + bias), DenseAdd: y = act(x W + bias) + residual, over the last dimension of x.
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
#include "aot_ops/common/product-host.h"

namespace opgraft {
namespace {

// N and K of the weight as its orientation says.
int64_t weight_n(const Arguments &c) { return c.input(1).dim(c.attr_bool("transpose_b", true) ? 0 : 1); }
int64_t weight_k(const Arguments &c) { return c.input(1).dim(c.attr_bool("transpose_b", true) ? 1 : 0); }

Shape check_dense(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "weight", 0, "x");
  auto x = c.input(0).shape();
  c.check(!x.empty(), "x must have at least 1 dimension, got shape ()");
  c.check(c.input(1).rank() == 2, "weight must have 2 dimensions, got shape " + to_string(c.input(1).shape()));
  const int64_t k = weight_k(c), n = weight_n(c);
  c.check(may_equal(k, x.back()),
          "x's last dimension must equal weight's K of " + std::to_string(k) + ", got " + std::to_string(x.back()));
  if (c.inputs() > 2) {
    c.check_same_dtype(2, "bias", 0, "x");
    auto b = c.input(2).shape();
    c.check(b.size() == 1 && may_equal(b[0], n),
            "bias.shape must be (" + std::to_string(n) + ",), got " + to_string(b));
  }
  activation_from_name(c, c.attr_string("activation", "none"));
  Shape out(x.begin(), x.end());
  out.back() = n;
  return out;
}

void InferDense(InferContext &c) {
  c.check_inputs(2, 3);
  c.output(c.input(0).dtype(), check_dense(c));
}

void InferDenseAdd(InferContext &c) {
  Shape out = check_dense(c);
  c.check_same_dtype(3, "residual", 0, "x");
  auto r = c.input(3).shape();
  bool ok = r.size() == out.size();
  for (size_t i = 0; ok && i < r.size(); ++i) {
    ok = may_equal(r[i], out[i]);
    if (out[i] < 0) out[i] = r[i];
  }
  c.check(ok, "residual.shape must equal the product's shape " + to_string(out) + ", got " + to_string(r));
  c.output(c.input(0).dtype(), out);
}

GemmProblem problem(const Arguments &c) {
  const int64_t n = weight_n(c), k = weight_k(c);
  auto x = c.input(0).shape();
  const int64_t m = element_count(x.first(x.size() - 1));
  const bool transposed = c.attr_bool("transpose_b", true);
  return {c.input(0).dtype(),
          m,
          n,
          k,
          {c.input(0).raw(), k, 1},
          {c.input(1).raw(), transposed ? 1 : n, transposed ? k : 1},
          nullptr};
}

GemmProblem problem(const Context &c) {
  GemmProblem p = problem(static_cast<const Arguments &>(c));
  p.c = c.output(0).raw();
  p.packed = c.packed(1);
  p.bias = c.inputs() > 2 ? c.input(2).raw() : nullptr;
  p.residual = c.inputs() > 3 ? c.input(3).raw() : nullptr;
  p.activation = activation_from_name(c, c.attr_string("activation", "none"));
  return p;
}

uint64_t Workspace(InferContext &c) {
  const GemmProblem p = problem(static_cast<const Arguments &>(c));
  return product_workspace(p, product_kernels(p.dtype), c.input(1).known());
}

uint64_t PackedBytes(InferContext &c, int input) {
  const GemmProblem p = problem(static_cast<const Arguments &>(c));
  return input == 1 ? packed_bytes(p, product_kernels(p.dtype)) : 0;
}

void PackWeight(InferContext &c, int, void *dst) {
  const GemmProblem p = problem(static_cast<const Arguments &>(c));
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
OPGRAFT_OP(Dense, .inputs = -1, .infer = InferDense, .kernel = Kernel, .reference = Reference, .workspace = Workspace,
           .packed_bytes = PackedBytes, .pack = PackWeight)
OPGRAFT_OP(DenseAdd, .inputs = 4, .infer = InferDenseAdd, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackWeight)
#endif
