// Gradients of LayerNorm: LayerNormGrad and LayerNormGradExt of the statistics that LayerNorm and LayerNormExt gave,
// FusedLayerNormGrad of x alone, AddLayerNormGrad of a sum.
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

constexpr int gamma_at(Form form) { return form == kGiven || form == kExt ? 4 : form == kFused ? 2 : 3; }

void check(InferContext &c, const char *first, const char *second) {
  c.check_dtype(0, first, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, first, " must have at least 1 dimension, got shape ()");
  c.check_same_dtype(1, second, 0, first);
  c.check_same_shape(1, second, 0, first);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

// Inputs 2 and 3, of dimensions before `axis`.
void check_statistics(InferContext &c, int axis, const char *second, const char *third) {
  for (int k = 2; k < 4; ++k) {
    const char *name = k == 2 ? second : third;
    c.check_dtype(k, name, {OPGRAFT_FLOAT32});
    c.check_shape(k, name, rows_shape(c, axis));
  }
}

// x, dy, variance, mean, gamma
void Infer(InferContext &c) {
  check(c, "x", "dy");
  const LayerNormAxes axes = norm_axes(c);
  check_statistics(c, axes.norm, "variance", "mean");
  check_params(c, 4, "gamma", "x", false, c.input(0).rank() - axes.params);
  for (int k = 0; k < 2; ++k) c.output(c.input(4).dtype(), c.input(4).shape());
}

// dy, x, mean, rstd, gamma, beta
void InferExt(InferContext &c) {
  c.check_inputs(4, 6);
  check(c, "dy", "x");
  const int last = normalized_dims(c, 1, "x"), rank = c.input(0).rank();
  check_statistics(c, rank - last, "mean", "rstd");
  for (int k = 4; k < c.inputs(); ++k) check_params(c, k, k == 4 ? "gamma" : "beta", "dy", false, last);
  const auto mask = c.attr_ints("output_mask", {1, 1, 1});
  bool ok = mask.size() == 3;
  for (int64_t m : mask) ok = ok && (m == 0 || m == 1);
  c.check(ok, "output_mask must be 3 numbers of 0 or 1, got ", mask);
  for (int k = 0; k < 2; ++k) c.output(c.input(0).dtype(), c.input(0).shape().last(size_t(last)));
}

// dy, x, gamma; or dy, sum, dsum, gamma
template <Form form> void InferFused(InferContext &c) {
  constexpr int gamma = gamma_at(form);
  c.check_inputs(gamma, gamma + 1);
  check(c, "dy", form == kAdd ? "sum" : "x");
  if (form == kAdd) check_dsum(c);
  const bool given = c.inputs() > gamma;
  if (given) check_params(c, gamma, "gamma", "dy", true, 1);
  const auto of = given ? c.input(gamma).shape() : c.input(0).shape().last(1);
  for (int k = 0; k < 2; ++k) c.output(c.input(given ? gamma : 0).dtype(), of);
}

// What Infer says of the parameters, as numbers: how many dimensions of x a row has, and gamma.
template <Form form> int row_rank(const Arguments &c) {
  if (form == kExt) return int(c.attr_ints("normalized_shape").size());
  return form != kGiven ? 1 : c.input(0).rank() - norm_axes(c).norm;
}

template <Form form> NormGradRows rows_of(const Context &c) {
  const int64_t n = element_count(c.input(0).shape().last(size_t(row_rank<form>(c))));
  NormGradRows a =
      norm_grad_rows_of(c, form == kAdd, gamma_at(form), n, c.attr_float("epsilon", form == kGiven ? 1e-7 : 1e-5));
  if (form == kGiven) {
    std::swap(a.dy, a.x);
    a.variance = c.input(2).data<float>(), a.mean = c.input(3).data<float>();
  }
  if (form == kExt) a.mean = c.input(2).data<float>(), a.rstd = c.input(3).data<float>();
  return a;
}

template <Form form> void Kernel(Context &c) { norm_grad(c, rows_of<form>(c), LayerNormGrad_simd(c.input(0).dtype())); }

template <Form form> void Reference(Context &c) { norm_grad_reference(c, rows_of<form>(c), true); }

template <Form form> uint64_t Workspace(InferContext &c) {
  constexpr int gamma = gamma_at(form);
  const int64_t n = element_count(c.input(0).shape().last(size_t(row_rank<form>(c))));
  return norm_grad_workspace(c.input(0).size(), n, c.inputs() > gamma ? c.input(gamma).size() : n, 2);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_NORM_GRAD(LayerNormGrad, 5, 3, Infer, kGiven)
OPGRAFT_NORM_GRAD(LayerNormGradExt, -1, 3, InferExt, kExt)
OPGRAFT_NORM_GRAD(FusedLayerNormGrad, -1, 3, InferFused<kFused>, kFused)
OPGRAFT_NORM_GRAD(AddLayerNormGrad, -1, 3, InferFused<kAdd>, kAdd)
#endif
