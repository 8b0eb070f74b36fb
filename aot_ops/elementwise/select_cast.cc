// Select(cond, x, y) with broadcasting, and Cast between element types.
#include "opgraft/op.h"

#include <cmath>
#include <limits>

#include "aot_ops/common/strided.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "select_cast.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class From, class To> void Convert(const From *x, To *y, int64_t n) {
  Map([](auto, auto v) HWY_ATTR { return v; }, y, n, x);
}
void F16ToF32(const float16 *x, float *y, int64_t n) { Convert(x, y, n); }
void BF16ToF32(const bfloat16 *x, float *y, int64_t n) { Convert(x, y, n); }
void F32ToF16(const float *x, float16 *y, int64_t n) { Convert(x, y, n); }
void F32ToBF16(const float *x, bfloat16 *y, int64_t n) { Convert(x, y, n); }

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(F16ToF32)
OPGRAFT_SIMD(BF16ToF32)
OPGRAFT_SIMD(F32ToF16)
OPGRAFT_SIMD(F32ToBF16)

namespace {

void InferSelect(InferContext &c) {
  c.check_dtype(0, "cond", {OPGRAFT_BOOL});
  c.check(dtype_size(c.input(1).dtype()) > 0, "x.dtype is unknown", OPGRAFT_INVALID_TYPE);
  c.check_same_dtype(2, "y", 1, "x");
  c.output(c.input(1).dtype(), c.broadcast(c.input(0).shape(), c.broadcast(c.input(1).shape(), c.input(2).shape())));
}

template <class T> void select_elements(Context &c, bool parallel) {
  const TensorView cond = c.input(0), x = c.input(1), y = c.input(2), out = c.output(0);
  const auto rows = broadcast_rows<3>(out.shape(), {cond.shape(), x.shape(), y.shape()});
  auto body = [&](int64_t begin, int64_t end) {
    rows.walk(begin, end, [&](const int64_t(&at)[3], int64_t o, int64_t n) {
      const bool *p = cond.data<bool>() + at[0];
      const T *a = x.data<T>() + at[1], *b = y.data<T>() + at[2];
      T *r = out.data<T>() + o;
      for (int64_t i = 0; i < n; ++i) r[i] = p[i * rows.step[0]] ? a[i * rows.step[1]] : b[i * rows.step[2]];
    });
  };
  if (parallel) c.parallel_for(out.size(), 8192, body);
  else body(0, out.size());
}

void run_select(Context &c, bool parallel) {
  switch (dtype_size(c.input(1).dtype())) {
    case 1: return select_elements<uint8_t>(c, parallel);
    case 2: return select_elements<uint16_t>(c, parallel);
    case 4: return select_elements<uint32_t>(c, parallel);
    default: return select_elements<uint64_t>(c, parallel);
  }
}
void KernelSelect(Context &c) { run_select(c, true); }
void ReferenceSelect(Context &c) { run_select(c, false); }

int32_t target_dtype(const Arguments &a) {
  const std::string name = a.attr_string("dtype", "float32");
  const int32_t d = dtype_from_name(name);
  for (int32_t known :
       {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT8, OPGRAFT_INT32, OPGRAFT_INT64, OPGRAFT_BOOL})
    if (d == known) return d;
  a.fail(OPGRAFT_INVALID_VALUE,
         "dtype must be one of float32, float16, bfloat16, int8, int32, int64, bool, got '" + name + "'");
}

void InferCast(InferContext &c) {
  c.check_dtype(
      0, "x",
      {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT8, OPGRAFT_INT32, OPGRAFT_INT64, OPGRAFT_BOOL});
  c.output(target_dtype(c), c.input(0).shape());
}

// A float becomes the integer nearest to zero; beyond the range the nearest bound, NaN becomes 0.
template <class To, class From> To convert(From v) {
  using F = std::conditional_t<std::is_arithmetic_v<From>, From, float>;
  const F x = F(v);
  if constexpr (std::is_same_v<To, bool>) return x != F(0);
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<F>) {
    if (x != x) return 0;
    if (x < F(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (x >= -F(std::numeric_limits<To>::min())) return std::numeric_limits<To>::max();
    return To(x);
  } else if constexpr (std::is_integral_v<To>) return To(x);
  else return To(float(x));
}

template <class F> void with_types(Context &c, F &&f) {
  dispatch<float, float16, bfloat16, int8_t, int32_t, int64_t, bool>(c, c.input(0).dtype(), [&](auto from) {
    dispatch<float, float16, bfloat16, int8_t, int32_t, int64_t, bool>(c, c.output(0).dtype(),
                                                                       [&](auto to) { f(from, to); });
  });
}

void KernelCast(Context &c) {
  const int64_t size = c.output(0).size();
  with_types(c, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    const From *x = c.input(0).data<From>();
    To *y = c.output(0).data<To>();
    auto each = [&](auto &&run) {
      c.parallel_for(size, 8192, [&](int64_t b, int64_t e) { run(x + b, y + b, e - b); });
    };
    if constexpr (std::is_same_v<From, To>)
      each([](const From *p, To *q, int64_t n) { std::memcpy(q, p, size_t(n) * sizeof(From)); });
    else if constexpr (std::is_same_v<From, float16> && std::is_same_v<To, float>) each(F16ToF32_simd());
    else if constexpr (std::is_same_v<From, bfloat16> && std::is_same_v<To, float>) each(BF16ToF32_simd());
    else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, float16>) each(F32ToF16_simd());
    else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, bfloat16>) each(F32ToBF16_simd());
    else
      each([](const From *p, To *q, int64_t n) {
        for (int64_t i = 0; i < n; ++i) q[i] = convert<To>(p[i]);
      });
  });
}

void ReferenceCast(Context &c) {
  with_types(c, [&](auto from, auto to) {
    using From = decltype(from);
    using To = decltype(to);
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<To>()[i] = convert<To>(c.input(0).data<From>()[i]);
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Select, .inputs = 3, .infer = InferSelect, .kernel = KernelSelect, .reference = ReferenceSelect)
OPGRAFT_OP(Cast, .inputs = 1, .infer = InferCast, .kernel = KernelCast, .reference = ReferenceCast)
#endif
