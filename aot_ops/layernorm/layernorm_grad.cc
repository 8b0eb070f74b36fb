// Gradients of LayerNorm: LayerNormGrad of the statistics that LayerNorm gave, FusedLayerNormGrad of x alone.
#include "opgraft/op.h"

#include "layernorm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layernorm_grad.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/norm_grad-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {
template <class T> void LayerNormGrad(const NormGradRows &a, int64_t begin, int64_t end) {
  NormGradBlocks<true, T>(a, begin, end);
}
}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(LayerNormGrad)

namespace {

void check(InferContext &c, const char *first, const char *second) {
  c.check_dtype(0, first, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, std::string(first) + " must have at least 1 dimension, got shape ()");
  c.check_same_dtype(1, second, 0, first);
  c.check_same_shape(1, second, 0, first);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

// x, dy, variance, mean, gamma
void Infer(InferContext &c) {
  check(c, "x", "dy");
  const LayerNormAxes axes = norm_axes(c);
  for (int k = 2; k < 4; ++k) {
    const char *name = k == 2 ? "variance" : "mean";
    c.check_dtype(k, name, {OPGRAFT_FLOAT32});
    c.check_shape(k, name, rows_shape(c, axes.norm));
  }
  check_params(c, 4, "gamma", "x", false, c.input(0).rank() - axes.params);
  for (int k = 0; k < 2; ++k) c.output(c.input(4).dtype(), c.input(4).shape());
}

// dy, x, gamma, dsum
void InferFused(InferContext &c) {
  c.check_inputs(2, 4);
  check(c, "dy", "x");
  if (c.inputs() > 2) check_params(c, 2, "gamma", "dy", true, 1);
  if (c.inputs() > 3) {
    c.check_same_dtype(3, "dsum", 0, "dy");
    c.check_same_shape(3, "dsum", 0, "dy");
  }
  const bool given = c.inputs() > 2;
  for (int k = 0; k < 2; ++k) c.output(c.input(given ? 2 : 0).dtype(), c.input(0).shape().last(1));
}

// What Infer says of the parameters, as numbers: how many dimensions of x a row has, and gamma.
template <bool kFused> int row_rank(const Arguments &c) { return kFused ? 1 : c.input(0).rank() - norm_axes(c).norm; }

template <bool kFused> NormGradRows rows_of(const Context &c) {
  NormGradRows a{};
  a.dy = c.input(kFused ? 0 : 1).raw();
  a.x = c.input(kFused ? 1 : 0).raw();
  constexpr int gamma = kFused ? 2 : 4;
  if (c.inputs() > gamma) a.gamma = c.input(gamma).raw();
  if (kFused && c.inputs() > 3) a.more = c.input(3).raw();
  if (!kFused) a.variance = c.input(2).data<float>(), a.mean = c.input(3).data<float>();
  a.dx = c.output(0).raw();
  a.n = element_count(c.input(0).shape().last(size_t(row_rank<kFused>(c))));
  a.params = c.output(1).size();
  a.rows = row_count(c, a.n);
  a.epsilon = c.attr_float("epsilon", kFused ? 1e-5 : 1e-7);
  a.wide = wide_params(c, gamma);
  return a;
}

template <bool kFused> void Kernel(Context &c) {
  norm_grad(c, rows_of<kFused>(c), LayerNormGrad_simd(c.input(0).dtype()));
}

template <bool kFused> void Reference(Context &c) { norm_grad_reference(c, rows_of<kFused>(c), true); }

template <bool kFused> uint64_t Workspace(InferContext &c) {
  constexpr int gamma = kFused ? 2 : 4;
  const int64_t n = element_count(c.input(0).shape().last(size_t(row_rank<kFused>(c))));
  return norm_grad_workspace(c.input(0).size(), n, c.inputs() > gamma ? c.input(gamma).size() : n, 2);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(LayerNormGrad, .inputs = 5, .outputs = 3, .infer = Infer, .kernel = Kernel<false>,
           .reference = Reference<false>, .workspace = Workspace<false>)
OPGRAFT_OP(FusedLayerNormGrad, .inputs = -1, .outputs = 3, .infer = InferFused, .kernel = Kernel<true>,
           .reference = Reference<true>, .workspace = Workspace<true>)
#endif
