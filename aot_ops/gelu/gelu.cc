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
#include "aot_ops/common/stream-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void Gelu(const void *from, void *to, int64_t n, bool by_tanh, bool past) {
  const T *x = static_cast<const T *>(from);
  T *y = static_cast<T *>(to);
  if (by_tanh)
    MapPast(
        past, [](auto d, auto v) HWY_ATTR { return GeluTanh<T>(d, v); }, y, n, x);
  else
    MapPast(
        past, [](auto d, auto v) HWY_ATTR { return GeluErf(d, v); }, y, n, x);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Gelu)

namespace {

constexpr int64_t kGrain = 16384;  // elements: 2 to 4 µs of work, above the cost of a hand-over

bool by_tanh(const Arguments &c) {
  const std::string a = c.attr_string("approximate", "none");
  c.check(a == "none" || a == "tanh", "approximate must be none or tanh, got '", a, "'");
  return a == "tanh";
}

void infer(InferContext &c, const char *x) {
  c.check_dtype(0, x, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  by_tanh(c);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void Infer(InferContext &c) { infer(c, "x"); }
void InferExt(InferContext &c) { infer(c, "input"); }

void Kernel(Context &c) {
  const bool tanh = by_tanh(c), past = goes_past_caches(c);
  const auto kernel = Gelu_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.output(0).size(), kGrain,
                 [&](int64_t b, int64_t e) { kernel(x + b * size, y + b * size, e - b, tanh, past); });
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
OPGRAFT_OP(GeluExt, .inputs = 1, .infer = InferExt, .kernel = Kernel, .reference = Reference)
#endif
