// Gradients of RMSNorm: RmsNormGrad of the statistics that RmsNorm gave, FusedRmsNormGrad of x alone.
#include "opgraft/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rmsnorm_grad.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/norm_grad-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {
template <class T> void RmsNormGrad(const NormGradRows &a, int64_t begin, int64_t end) {
  NormGradBlocks<false, T>(a, begin, end);
}
}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(RmsNormGrad)

namespace {

void check(InferContext &c, int gamma, bool wide) {
  c.check_dtype(0, "dy", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, "dy must have at least 1 dimension, got shape ()");
  c.check_same_dtype(1, "x", 0, "dy");
  c.check_same_shape(1, "x", 0, "dy");
  if (c.inputs() > gamma) check_params(c, gamma, "gamma", "dy", wide);
  c.output(c.input(0).dtype(), c.input(1).shape());
}

void Infer(InferContext &c) {
  check(c, 3, false);
  c.check_dtype(2, "rstd", {OPGRAFT_FLOAT32});
  c.check_shape(2, "rstd", rows_shape(c, c.input(0).rank() - trailing(c, 3)));
  c.output(OPGRAFT_FLOAT32, c.input(3).shape());
}

void InferFused(InferContext &c) {
  c.check_inputs(2, 4);
  check(c, 2, true);
  if (c.inputs() > 3) {
    c.check_same_dtype(3, "dsum", 0, "dy");
    c.check_same_shape(3, "dsum", 0, "dy");
  }
  if (c.inputs() > 2) c.output(c.input(2).dtype(), c.input(2).shape());
  else c.output(c.input(0).dtype(), c.input(0).shape().last(1));
}

template <bool kFused> NormGradRows rows_of(const Context &c) {
  constexpr int gamma = kFused ? 2 : 3;
  NormGradRows a{};
  a.dy = c.input(0).raw();
  a.x = c.input(1).raw();
  if (c.inputs() > gamma) a.gamma = c.input(gamma).raw();
  if (kFused && c.inputs() > 3) a.more = c.input(3).raw();
  if (!kFused) a.rstd = c.input(2).data<float>();
  a.dx = c.output(0).raw();
  a.n = a.params = c.output(1).size();
  a.rows = row_count(c, a.n);
  a.epsilon = c.attr_float("epsilon", 1e-6);
  a.wide = wide_params(c, gamma);
  return a;
}

template <bool kFused> void Kernel(Context &c) {
  norm_grad(c, rows_of<kFused>(c), RmsNormGrad_simd(c.input(0).dtype()));
}

template <bool kFused> void Reference(Context &c) { norm_grad_reference(c, rows_of<kFused>(c), false); }

template <bool kFused> uint64_t Workspace(InferContext &c) {
  constexpr int gamma = kFused ? 2 : 3;
  const int64_t n = c.inputs() > gamma ? c.input(gamma).size() : c.input(0).dim(-1);
  return norm_grad_workspace(c.input(0).size(), n, n, 1);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(RmsNormGrad, .inputs = 4, .outputs = 2, .infer = Infer, .kernel = Kernel<false>,
           .reference = Reference<false>, .workspace = Workspace<false>)
OPGRAFT_OP(FusedRmsNormGrad, .inputs = -1, .outputs = 2, .infer = InferFused, .kernel = Kernel<true>,
           .reference = Reference<true>, .workspace = Workspace<true>)
#endif
