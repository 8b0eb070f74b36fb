// Softmax: y = e^(x - max x) / sum of e^(x - max x) along one axis. Half types compute in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "softmax.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// One contiguous row. float32 keeps the exponentials in y; half types compute them twice, since
// rounding them before the division would cost accuracy.
template <class T> void Row(const T *x, T *y, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), whole = n / lanes * lanes;
  const size_t rest = size_t(n - whole);
  const auto inside = hn::FirstN(d, rest);
  auto most = hn::Set(d, -HUGE_VALF);
  for (int64_t i = 0; i < whole; i += lanes) most = hn::Max(most, LoadF32(d, x + i));
  if (rest) most = hn::Max(most, hn::IfThenElse(inside, LoadF32N(d, x + whole, rest), hn::Set(d, -HUGE_VALF)));
  most = hn::MaxOfLanes(d, most);
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < whole; i += lanes) {
    const auto e = Exp(d, hn::Sub(LoadF32(d, x + i), most));
    if constexpr (std::is_same_v<T, float>) StoreF32(e, d, y + i);
    sum = hn::Add(sum, e);
  }
  auto tail = hn::Zero(d);
  if (rest) {
    tail = hn::IfThenElseZero(inside, Exp(d, hn::Sub(LoadF32N(d, x + whole, rest), most)));
    sum = hn::Add(sum, tail);
  }
  const auto scale = hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, sum));
  for (int64_t i = 0; i < whole; i += lanes) {
    auto e = hn::Zero(d);
    if constexpr (std::is_same_v<T, float>) e = hn::LoadU(d, y + i);
    else e = Exp(d, hn::Sub(LoadF32(d, x + i), most));
    StoreF32(hn::Mul(e, scale), d, y + i);
  }
  if (rest) StoreF32N(hn::Mul(tail, scale), d, y + whole, rest);
}

// `width` (at most a vector) neighbouring columns of n elements, `stride` apart.
template <class T> void Columns(const T *x, T *y, int64_t n, int64_t stride, int64_t width) {
  const hn::ScalableTag<float> d;
  const size_t w = size_t(width);
  const bool full = w == hn::Lanes(d);
  auto load = [&](int64_t k) HWY_ATTR { return full ? LoadF32(d, x + k * stride) : LoadF32N(d, x + k * stride, w); };
  auto most = hn::Set(d, -HUGE_VALF), sum = hn::Zero(d);
  for (int64_t k = 0; k < n; ++k) most = hn::Max(most, load(k));
  for (int64_t k = 0; k < n; ++k) sum = hn::Add(sum, Exp(d, hn::Sub(load(k), most)));
  const auto scale = hn::Div(hn::Set(d, 1.0f), sum);
  for (int64_t k = 0; k < n; ++k) {
    const auto v = hn::Mul(Exp(d, hn::Sub(load(k), most)), scale);
    if (full) StoreF32(v, d, y + k * stride);
    else StoreF32N(v, d, y + k * stride, w);
  }
}

template <class T> void Rows(const void *vx, void *vy, int64_t n, int64_t inner, int64_t begin, int64_t end) {
  const T *x = static_cast<const T *>(vx);
  T *y = static_cast<T *>(vy);
  if (inner == 1) {
    for (int64_t r = begin; r < end; ++r) Row(x + r * n, y + r * n, n);
    return;
  }
  const int64_t lanes = int64_t(hn::Lanes(hn::ScalableTag<float>()));
  for (int64_t r = begin; r < end;) {
    const int64_t column = r % inner, width = std::min({lanes, inner - column, end - r});
    const int64_t at = r / inner * n * inner + column;
    Columns(x + at, y + at, n, inner, width);
    r += width;
  }
}

// Rows [begin, end) of the outer * inner rows of n elements.
void SoftmaxRows(int dtype, const void *x, void *y, int64_t n, int64_t inner, int64_t begin, int64_t end) {
  if (dtype == OPGRAFT_FLOAT32) return Rows<float>(x, y, n, inner, begin, end);
  if (dtype == OPGRAFT_FLOAT16) return Rows<float16>(x, y, n, inner, begin, end);
  return Rows<bfloat16>(x, y, n, inner, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(SoftmaxRows)

namespace {

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.axis(c.attr_int("axis", -1), c.input(0).rank());
  c.output(c.input(0).dtype(), c.input(0).shape());
}

struct Extents {
  int64_t outer, n, inner;
  explicit Extents(const Arguments &a) {
    auto dims = a.input(0).shape();
    const size_t axis = size_t(a.axis(a.attr_int("axis", -1), a.input(0).rank()));
    outer = element_count(dims.first(axis));
    n = dims[axis];
    inner = element_count(dims.subspan(axis + 1));
  }
};

void Kernel(Context &c) {
  const Extents e(c);
  if (e.n == 0) return;
  auto rows = SoftmaxRows_simd();
  c.parallel_for(e.outer * e.inner, std::max<int64_t>(e.inner == 1 ? 1 : 16, 2048 / e.n),
                 [&](int64_t begin, int64_t end) {
                   rows(c.input(0).dtype(), c.input(0).raw(), c.output(0).raw(), e.n, e.inner, begin, end);
                 });
}

void Reference(Context &c) {
  const Extents e(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < e.outer * e.inner; ++r) {
      const int64_t at = r / e.inner * e.n * e.inner + r % e.inner;
      const T *x = c.input(0).data<T>() + at;
      T *y = c.output(0).data<T>() + at;
      float most = -HUGE_VALF;
      double sum = 0;
      for (int64_t k = 0; k < e.n; ++k) most = std::max(most, float(x[k * e.inner]));
      for (int64_t k = 0; k < e.n; ++k) sum += std::exp(double(float(x[k * e.inner])) - most);
      for (int64_t k = 0; k < e.n; ++k) y[k * e.inner] = T(float(std::exp(double(float(x[k * e.inner])) - most) / sum));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Softmax, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
