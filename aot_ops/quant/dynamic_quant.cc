// DynamicQuantExt: every row of x as int8 and what its codes are to be multiplied by.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dynamic_quant.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/quantise-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void QuantiseOneRow(const void *x, const void *smooth, int64_t n, int8_t *codes, float *scale) {
  *scale = QuantiseRun<T>(static_cast<const T *>(x), static_cast<const T *>(smooth), n, codes).scale;
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(QuantiseOneRow)

namespace {

enum { kX, kSmooth };

void Infer(InferContext &c) {
  c.check_inputs(1, 2);
  c.check_dtype(kX, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  const auto x = c.input(kX).shape();
  c.check(x.size() >= 1, "x must have at least 1 dimension, got shape ", x);
  if (c.inputs() > kSmooth) {
    const auto s = c.input(kSmooth).shape();
    c.check(c.input(kSmooth).dtype() == c.input(kX).dtype(), "smooth_scales.dtype must equal x.dtype ",
            dtype_name(c.input(kX).dtype()), ", got ", dtype_name(c.input(kSmooth).dtype()));
    c.check(s.size() == 1 && may_equal(s[0], x.back()), "smooth_scales.shape must be ", x.last(1), ", got ", s);
  }
  c.output(OPGRAFT_INT8, x);
  c.output(OPGRAFT_FLOAT32, x.first(x.size() - 1));
}

struct Rows {
  int64_t count, n;
};
Rows rows(const Arguments &c) {
  const auto x = c.input(kX).shape();
  return {element_count(x.first(x.size() - 1)), x.back()};
}
const void *smooth(const Context &c) { return c.inputs() > kSmooth ? c.input(kSmooth).raw() : nullptr; }

void Kernel(Context &c) {
  const Rows r = rows(c);
  const auto quantise = QuantiseOneRow_simd(c.input(kX).dtype());
  const int64_t row = r.n * int64_t(dtype_size(c.input(kX).dtype()));
  const char *x = c.input(kX).data<char>();
  auto *y = c.output(0).data<int8_t>();
  auto *scale = c.output(1).data<float>();
  c.parallel_for(r.count, std::max<int64_t>(1, 32768 / std::max<int64_t>(r.n, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (r.n == 0) scale[i] = 0;
      else quantise(x + i * row, smooth(c), r.n, y + i * r.n, scale + i);
  });
}

void Reference(Context &c) {
  const Rows r = rows(c);
  dispatch<float, float16, bfloat16>(c, c.input(kX).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto *factor = static_cast<const T *>(smooth(c));
    for (int64_t i = 0; i < r.count; ++i) {
      const auto value = [&](int64_t j) {
        return double(float(c.input(kX).data<T>()[i * r.n + j])) * (factor ? double(float(factor[j])) : 1.0);
      };
      double largest = 0;
      for (int64_t j = 0; j < r.n; ++j)
        largest = std::isfinite(value(j)) ? std::max(largest, std::fabs(value(j))) : double(NAN);
      for (int64_t j = 0; j < r.n; ++j)
        c.output(0).data<int8_t>()[i * r.n + j] =
            largest > 127.0 / 3.4e38 ? int8_t(std::nearbyint(value(j) / largest * 127.0)) : int8_t(0);
      c.output(1).data<float>()[i] = float(largest / 127.0);
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(DynamicQuantExt, .inputs = -1, .outputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
