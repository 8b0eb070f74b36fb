// Gradients of RMSNorm: RmsNormGrad of the statistics that RmsNorm gave, FusedRmsNormGrad of x alone.
#include "opgraft/op.h"

#include "aot_ops/common/norm_grad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rmsnorm_grad.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/norm_grad-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {
template <class T> void Blocks(const NormGradRows &a, bool wide, int64_t begin, int64_t end) {
  wide ? NormGradBlocks<false, T, float>(a, begin, end) : NormGradBlocks<false, T, T>(a, begin, end);
}
}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Blocks)

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
  auto x = c.input(0).shape();
  Shape rows(x.begin(), x.end());
  std::fill(rows.end() - trailing(c, 3), rows.end(), 1);
  c.check_dtype(2, "rstd", {OPGRAFT_FLOAT32});
  auto got = c.input(2).shape();
  bool ok = got.size() == rows.size();
  for (size_t k = 0; ok && k < rows.size(); ++k) ok = may_equal(got[k], rows[k]);
  c.check(ok, "rstd.shape must be " + to_string(rows) + ", got " + to_string(got));
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
  return a;
}

template <bool kFused> bool wide(const Context &c) {
  constexpr int gamma = kFused ? 2 : 3;
  return c.inputs() > gamma && c.input(gamma).dtype() == OPGRAFT_FLOAT32;
}

template <bool kFused> void Kernel(Context &c) {
  const auto blocks = Blocks_simd(c.input(0).dtype());
  norm_grad(
      c, rows_of<kFused>(c), false,
      [&, w = wide<kFused>(c)](const NormGradRows &a, int64_t b, int64_t e) { blocks(a, w, b, e); },
      [out = c.output(1)](int, int64_t i, float v) { put(out, i, v); });
}

template <bool kFused> void Reference(Context &c) {
  const NormGradRows a = rows_of<kFused>(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto param = [&, w = wide<kFused>(c)](int64_t i) {
      return !a.gamma ? 1.0
             : w      ? double(static_cast<const float *>(a.gamma)[i])
                      : double(float(static_cast<const T *>(a.gamma)[i]));
    };
    norm_grad_reference<T>(a, false, param, [&](int, int64_t i, float v) { put(c.output(1), i, v); });
  });
}

template <bool kFused> uint64_t Workspace(InferContext &c) {
  constexpr int gamma = kFused ? 2 : 3;
  const int64_t n = c.inputs() > gamma ? c.input(gamma).size() : c.input(0).dim(-1);
  return norm_grad_workspace(c.input(0).size(), n, n, false);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(RmsNormGrad, .inputs = 4, .outputs = 2, .infer = Infer, .kernel = Kernel<false>,
           .reference = Reference<false>, .workspace = Workspace<false>)
OPGRAFT_OP(FusedRmsNormGrad, .inputs = -1, .outputs = 2, .infer = InferFused, .kernel = Kernel<true>,
           .reference = Reference<true>, .workspace = Workspace<true>)
#endif
