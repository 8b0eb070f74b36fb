// BiasAdd: y = x + b, b lying along one axis of x: axis 1, or the last for data_format NHWC.
#include "opgraft/op.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bias_add.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void Rows(const T *x, const T *b, T *y, int64_t n) {  // b along the row
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(hn::Add(LoadF32(d, x + i), LoadF32(d, b + i)), d, y + i);
  for (; i < n; ++i) y[i] = T(float(x[i]) + float(b[i]));
}
template <class T> void Plane(const T *x, float b, T *y, int64_t n) {  // one number for the plane
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto v = hn::Set(d, b);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(hn::Add(LoadF32(d, x + i), v), d, y + i);
  for (; i < n; ++i) y[i] = T(float(x[i]) + b);
}
// Units [begin, end): rows of `channels` elements where inner is 1, else planes of `inner`.
template <class T>
void Units(const void *vx, const void *vb, void *vy, int64_t channels, int64_t inner, int64_t begin, int64_t end) {
  const T *x = static_cast<const T *>(vx), *b = static_cast<const T *>(vb);
  T *y = static_cast<T *>(vy);
  for (int64_t u = begin; u < end; ++u) {
    if (inner == 1) Rows(x + u * channels, b, y + u * channels, channels);
    else Plane(x + u * inner, float(b[u % channels]), y + u * inner, inner);
  }
}
void BiasUnits(int dtype, const void *x, const void *b, void *y, int64_t channels, int64_t inner, int64_t begin,
               int64_t end) {
  if (dtype == OPGRAFT_FLOAT32) return Units<float>(x, b, y, channels, inner, begin, end);
  if (dtype == OPGRAFT_FLOAT16) return Units<float16>(x, b, y, channels, inner, begin, end);
  return Units<bfloat16>(x, b, y, channels, inner, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(BiasUnits)

namespace {

int bias_axis(const Arguments &a) {
  const std::string format = a.attr_string("data_format", "NCHW");
  a.check(format == "NCHW" || format == "NHWC" || format == "NCDHW", "data_format must be NCHW, NHWC or NCDHW, got '",
          format, "'");
  return format == "NHWC" ? a.input(0).rank() - 1 : 1;
}

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "b", 0, "x");
  c.check(c.input(0).rank() >= 2, "x must have at least 2 dimensions, got shape ", c.input(0).shape());
  c.check(c.input(1).rank() == 1, "b must have 1 dimension, got shape ", c.input(1).shape());
  const int64_t want = c.input(0).dim(bias_axis(c)), got = c.input(1).dim(0);
  c.check(want < 0 || got < 0 || want == got, "b must have ", want, " elements as axis ", bias_axis(c), " of x, got ",
          got);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void Kernel(Context &c) {
  const int64_t channels = c.input(1).dim(0),
                inner = element_count(c.input(0).shape().subspan(size_t(bias_axis(c)) + 1));
  const int64_t size = c.output(0).size(), unit = inner == 1 ? channels : inner;
  if (size == 0) return;
  auto units = BiasUnits_simd();
  c.parallel_for(size / unit, std::max<int64_t>(1, 8192 / unit), [&](int64_t begin, int64_t end) {
    units(c.input(0).dtype(), c.input(0).raw(), c.input(1).raw(), c.output(0).raw(), channels, inner, begin, end);
  });
}

void Reference(Context &c) {
  const int64_t channels = c.input(1).dim(0),
                inner = element_count(c.input(0).shape().subspan(size_t(bias_axis(c)) + 1));
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<T>()[i] = T(float(c.input(0).data<T>()[i]) + float(c.input(1).data<T>()[i / inner % channels]));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(BiasAdd, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
