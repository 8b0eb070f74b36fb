// FusedGeLU: y = x Phi(x), Phi the normal distribution function by erf, or its approximation by tanh
// (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"). Any shape; the halves compute in float32.
#include "opgraft/op.h"

#include "aot_ops/common/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gelu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/gelu-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T, class F> HWY_INLINE void Map(const T *x, T *y, int64_t n, F f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(f(d, LoadF32(d, x + i)), d, y + i);
  if (size_t rest = size_t(n - i)) StoreF32N(f(d, LoadF32N(d, x + i, rest)), d, y + i, rest);
}
template <class T> void Gelu(const T *x, T *y, int64_t n, bool by_tanh) {
  if (by_tanh) Map(x, y, n, [](auto d, auto v) HWY_ATTR { return GeluTanh(d, v); });
  else Map(x, y, n, [](auto d, auto v) HWY_ATTR { return GeluErf(d, v); });
}
void GeluF32(const float *x, float *y, int64_t n, bool by_tanh) { Gelu(x, y, n, by_tanh); }
void GeluF16(const float16 *x, float16 *y, int64_t n, bool by_tanh) { Gelu(x, y, n, by_tanh); }
void GeluBF16(const bfloat16 *x, bfloat16 *y, int64_t n, bool by_tanh) { Gelu(x, y, n, by_tanh); }

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(GeluF32)
OPGRAFT_SIMD(GeluF16)
OPGRAFT_SIMD(GeluBF16)

namespace {

constexpr int64_t kGrain = 8192;  // elements: about 5 µs of work

bool by_tanh(const Arguments &c) {
  const std::string a = c.attr_string("approximate", "none");
  c.check(a == "none" || a == "tanh", "approximate must be none or tanh, got '" + a + "'");
  return a == "tanh";
}

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  by_tanh(c);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void Kernel(Context &c) {
  auto run = [&](auto kernel, auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    T *y = c.output(0).data<T>();
    const bool tanh = by_tanh(c);
    c.parallel_for(c.output(0).size(), kGrain, [&](int64_t b, int64_t e) { kernel(x + b, y + b, e - b, tanh); });
  };
  switch (c.input(0).dtype()) {
    case OPGRAFT_FLOAT32: return run(GeluF32_simd(), float());
    case OPGRAFT_FLOAT16: return run(GeluF16_simd(), float16());
    default: return run(GeluBF16_simd(), bfloat16());
  }
}

void Reference(Context &c) {
  const Activation a = by_tanh(c) ? Activation::kGeluTanh : Activation::kGelu;
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<T>()[i] = T(float(activate(a, double(float(c.input(0).data<T>()[i])))));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(FusedGeLU, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
