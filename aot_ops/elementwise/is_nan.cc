// IsNan: whether an element is no number.
#include "opgraft/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "is_nan.cc"
#include "hwy/foreach_target.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Of half types the bits tell: an exponent of ones, and more.
HWY_INLINE bool NotANumber(float v) { return v != v; }
HWY_INLINE bool NotANumber(::opgraft::float16 v) { return (v.bits & 0x7fff) > 0x7c00; }
HWY_INLINE bool NotANumber(::opgraft::bfloat16 v) { return (v.bits & 0x7fff) > 0x7f80; }

// So plain that the compiler vectorises it for the target.
template <class T> void FindNan(const void *from, bool *y, int64_t n) {
  const T *x = static_cast<const T *>(from);
  for (int64_t i = 0; i < n; ++i) y[i] = NotANumber(x[i]);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(FindNan)

namespace {

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.output(OPGRAFT_BOOL, c.input(0).shape());
}

void Kernel(Context &c) {
  const int32_t t = c.input(0).dtype();
  const int64_t size = int64_t(dtype_size(t));
  const char *x = c.input(0).data<char>();
  bool *y = c.output(0).data<bool>();
  const auto find = FindNan_simd(t);
  c.parallel_for(c.output(0).size(), 16384, [&](int64_t b, int64_t e) { find(x + b * size, y + b, e - b); });
}

void Reference(Context &c) {
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<bool>()[i] = std::isnan(float(c.input(0).data<decltype(zero)>()[i]));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(IsNan, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
