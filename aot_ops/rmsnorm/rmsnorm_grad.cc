// Gradients of RMSNorm: RmsNormGrad of the statistics that RmsNorm gave, FusedRmsNormGrad of x alone,
// FusedAddRmsNormGrad of a sum.
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

constexpr int gamma_at(Form form) { return form == kFused ? 2 : 3; }

void check(InferContext &c, const char *x, int gamma, bool wide) {
  c.check_dtype(0, "dy", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, "dy must have at least 1 dimension, got shape ()");
  c.check_same_dtype(1, x, 0, "dy");
  c.check_same_shape(1, x, 0, "dy");
  if (c.inputs() > gamma) check_params(c, gamma, "gamma", "dy", wide);
  c.output(c.input(0).dtype(), c.input(1).shape());
}

void Infer(InferContext &c) {
  check(c, "x", 3, false);
  c.check_dtype(2, "rstd", {OPGRAFT_FLOAT32});
  c.check_shape(2, "rstd", rows_shape(c, c.input(0).rank() - trailing(c, 3)));
  c.output(OPGRAFT_FLOAT32, c.input(3).shape());
}

// dy, x, gamma; or dy, sum, dsum, gamma
template <Form form> void InferFused(InferContext &c) {
  constexpr int gamma = gamma_at(form);
  c.check_inputs(gamma, gamma + 1);
  check(c, form == kAdd ? "sum" : "x", gamma, true);
  if (form == kAdd) check_dsum(c);
  if (c.inputs() > gamma) c.output(c.input(gamma).dtype(), c.input(gamma).shape());
  else c.output(c.input(0).dtype(), c.input(0).shape().last(1));
}

template <Form form> NormGradRows rows_of(const Context &c) {
  NormGradRows a =
      norm_grad_rows_of(c, form == kAdd, gamma_at(form), c.output(1).size(), c.attr_float("epsilon", 1e-6));
  if (form == kGiven) a.rstd = c.input(2).data<float>();
  return a;
}

template <Form form> void Kernel(Context &c) { norm_grad(c, rows_of<form>(c), RmsNormGrad_simd(c.input(0).dtype())); }

template <Form form> void Reference(Context &c) { norm_grad_reference(c, rows_of<form>(c), false); }

template <Form form> uint64_t Workspace(InferContext &c) {
  constexpr int gamma = gamma_at(form);
  const int64_t n = c.inputs() > gamma ? c.input(gamma).size() : c.input(0).dim(-1);
  return norm_grad_workspace(c.input(0).size(), n, n, 1);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_NORM_GRAD(RmsNormGrad, 4, 2, Infer, kGiven)
OPGRAFT_NORM_GRAD(FusedRmsNormGrad, -1, 2, InferFused<kFused>, kFused)
OPGRAFT_NORM_GRAD(FusedAddRmsNormGrad, -1, 2, InferFused<kAdd>, kAdd)
#endif
