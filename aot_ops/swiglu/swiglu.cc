// SwiGLU: y = x * SiLU(gate) = x * gate / (1 + e^-gate)   (Shazeer 2020, "GLU Variants Improve
// Transformer"). Any shape; float16 and bfloat16 compute in float32.
#include "opgraft/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "swiglu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void Separate(const void *x, const void *gate, void *y, int64_t n) {
  Map([](auto d, auto v, auto g) HWY_ATTR { return hn::Mul(v, Silu(d, g)); }, static_cast<T *>(y), n,
      static_cast<const T *>(x), static_cast<const T *>(gate));
}

// x and gate alternate: the pair (x, gate) of output i lies at 2i.
template <class T> void Interleaved(const void *pairs, void *to, int64_t n) {
  const T *xg = static_cast<const T *>(pairs);
  T *y = static_cast<T *>(to);
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto a = LoadF32(d, xg + 2 * i), b = LoadF32(d, xg + 2 * i + lanes);
    // ConcatEven/Odd take the upper half from their first operand.
    StoreF32(hn::Mul(hn::ConcatEven(d, b, a), Silu(d, hn::ConcatOdd(d, b, a))), d, y + i);
  }
  for (; i < n; ++i) {
    const float v = float(xg[2 * i]), g = float(xg[2 * i + 1]);
    y[i] = T(v * (g / (1.0f + std::exp(-g))));
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Separate)
OPGRAFT_SIMD_FLOATS(Interleaved)

namespace {

constexpr int64_t kGrain = 8192;  // elements: about 10 µs of work, well above the cost of a hand-over

void InferSeparate(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "gate", 0, "x");
  c.check_same_shape(1, "gate", 0, "x");
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void InferInterleaved(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  auto dims = c.input(0).shape();
  c.check(!dims.empty(), "x must have at least 1 dimension, got shape ()");
  Shape out(dims.begin(), dims.end());
  c.check(out.back() < 0 || out.back() % 2 == 0, "x's last dimension must be even, got " + std::to_string(out.back()));
  out.back() = c.dim_op('/', out.back(), 2);
  c.output(c.input(0).dtype(), out);
}

void KernelSeparate(Context &c) {
  const auto kernel = Separate_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>(), *g = c.input(1).data<char>();
  char *y = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.output(0).size(), kGrain,
                 [&](int64_t b, int64_t e) { kernel(x + b * size, g + b * size, y + b * size, e - b); });
}

void KernelInterleaved(Context &c) {
  const auto kernel = Interleaved_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.output(0).size(), kGrain,
                 [&](int64_t b, int64_t e) { kernel(x + 2 * b * size, y + b * size, e - b); });
}

double Formula(double x, double gate) { return x * (gate / (1 + std::exp(-gate))); }

void ReferenceSeparate(Context &c) {
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<T>()[i] = T(float(Formula(float(c.input(0).data<T>()[i]), float(c.input(1).data<T>()[i]))));
  });
}

void ReferenceInterleaved(Context &c) {
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<T>()[i] = T(float(Formula(float(x[2 * i]), float(x[2 * i + 1]))));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(SwiGLU, .inputs = 2, .infer = InferSeparate, .kernel = KernelSeparate, .reference = ReferenceSeparate)
OPGRAFT_OP(SwiGLUInterleaved, .inputs = 1, .infer = InferInterleaved, .kernel = KernelInterleaved,
           .reference = ReferenceInterleaved)
#endif
