// Select(cond, x, y) with broadcasting, and Cast between element types.
#include "opgraft/op.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "aot_ops/common/strided.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "select_cast.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

#ifndef OPGRAFT_SELECT_CAST_ONCE
#define OPGRAFT_SELECT_CAST_ONCE
namespace opgraft {

// A float becomes the integer nearest to zero; beyond the range the nearest bound, NaN becomes 0.
template <class To, class From> To convert(From v) {
  using F = std::conditional_t<std::is_arithmetic_v<From>, From, float>;
  const F x = F(v);
  if constexpr (std::is_same_v<To, bool>) return x != F(0);
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<F>) {
    if (x != x) return 0;
    if (x < F(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (x >= F(uint64_t(1) << std::numeric_limits<To>::digits)) return std::numeric_limits<To>::max();
    return To(x);
  } else if constexpr (std::is_integral_v<To>) return To(x);
  else return To(float(x));
}

}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Where a loop is plain the compiler vectorises it for the target.
template <class From, class To> void Convert(const void *from, void *to, int64_t n) {
  constexpr bool kHalf = !std::is_arithmetic_v<From> || !std::is_arithmetic_v<To>;
  constexpr bool kFloats = !std::is_integral_v<From> && !std::is_integral_v<To>;
  const From *x = static_cast<const From *>(from);
  To *y = static_cast<To *>(to);
  int64_t i = 0;
  if constexpr (kHalf && kFloats) {
    Map([](auto, auto v) HWY_ATTR { return v; }, y, n, x);
    return;
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, int32_t>) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    const int64_t lanes = int64_t(hn::Lanes(d));
    for (; i + lanes <= n; i += lanes) {  // ConvertTo takes the nearest bound beyond the range
      const auto v = hn::LoadU(d, x + i);
      const auto nan = hn::RebindMask(di, hn::IsNaN(v));
      hn::StoreU(hn::IfThenZeroElse(nan, hn::ConvertTo(di, v)), di, y + i);
    }
  }
  for (; i < n; ++i) y[i] = convert<To>(x[i]);
}
template <class From> void ConvertTo(int to, const void *x, void *y, int64_t n) {
  switch (to) {
    case OPGRAFT_FLOAT32: return Convert<From, float>(x, y, n);
    case OPGRAFT_FLOAT16: return Convert<From, float16>(x, y, n);
    case OPGRAFT_BFLOAT16: return Convert<From, bfloat16>(x, y, n);
    case OPGRAFT_INT8: return Convert<From, int8_t>(x, y, n);
    case OPGRAFT_UINT8: return Convert<From, uint8_t>(x, y, n);
    case OPGRAFT_INT32: return Convert<From, int32_t>(x, y, n);
    case OPGRAFT_INT64: return Convert<From, int64_t>(x, y, n);
    default: return Convert<From, bool>(x, y, n);
  }
}
void CastRow(int from, int to, const void *x, void *y, int64_t n) {
  switch (from) {
    case OPGRAFT_FLOAT32: return ConvertTo<float>(to, x, y, n);
    case OPGRAFT_FLOAT16: return ConvertTo<float16>(to, x, y, n);
    case OPGRAFT_BFLOAT16: return ConvertTo<bfloat16>(to, x, y, n);
    case OPGRAFT_INT8: return ConvertTo<int8_t>(to, x, y, n);
    case OPGRAFT_UINT8: return ConvertTo<uint8_t>(to, x, y, n);
    case OPGRAFT_INT32: return ConvertTo<int32_t>(to, x, y, n);
    case OPGRAFT_INT64: return ConvertTo<int64_t>(to, x, y, n);
    default: return ConvertTo<bool>(to, x, y, n);
  }
}

// The elements of p as a mask of T's lanes.
template <class D> HWY_INLINE auto Truth(D d, const bool *p) {
  const auto bytes = hn::LoadU(hn::Rebind<uint8_t, D>(), reinterpret_cast<const uint8_t *>(p));
  if constexpr (sizeof(hn::TFromD<D>) == 1) return hn::Ne(bytes, hn::Zero(d));
  else if constexpr (sizeof(hn::TFromD<D>) == 8)
    return hn::Ne(hn::PromoteTo(d, hn::PromoteTo(hn::Rebind<uint32_t, D>(), bytes)), hn::Zero(d));
  else return hn::Ne(hn::PromoteTo(d, bytes), hn::Zero(d));
}
// Without branches, which random conditions would mispredict half the time. kA, kB: a row, not one element.
template <class T, bool kA, bool kB> void Choose(const bool *p, const T *a, const T *b, T *y, int64_t n) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto a0 = hn::Set(d, *a), b0 = hn::Set(d, *b);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::IfThenElse(Truth(d, p + i), kA ? hn::LoadU(d, a + i) : a0, kB ? hn::LoadU(d, b + i) : b0), d, y + i);
  for (; i < n; ++i) y[i] = p[i] ? a[kA ? i : 0] : b[kB ? i : 0];
}
template <class T>
void ChooseRow(const bool *p, int64_t sp, const void *va, int64_t sa, const void *vb, int64_t sb, void *vy, int64_t n) {
  const T *a = static_cast<const T *>(va), *b = static_cast<const T *>(vb);
  T *y = static_cast<T *>(vy);
  if (sp) {
    if (sa) return sb ? Choose<T, true, true>(p, a, b, y, n) : Choose<T, true, false>(p, a, b, y, n);
    return sb ? Choose<T, false, true>(p, a, b, y, n) : Choose<T, false, false>(p, a, b, y, n);
  }
  const T *from = *p ? a : b;
  const int64_t step = *p ? sa : sb;
  for (int64_t i = 0; i < n; ++i) y[i] = from[i * step];
}
void SelectRow(size_t size, const bool *p, int64_t sp, const void *a, int64_t sa, const void *b, int64_t sb, void *y,
               int64_t n) {
  switch (size) {
    case 1: return ChooseRow<uint8_t>(p, sp, a, sa, b, sb, y, n);
    case 2: return ChooseRow<uint16_t>(p, sp, a, sa, b, sb, y, n);
    case 4: return ChooseRow<uint32_t>(p, sp, a, sa, b, sb, y, n);
    default: return ChooseRow<uint64_t>(p, sp, a, sa, b, sb, y, n);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(CastRow)
OPGRAFT_SIMD(SelectRow)

namespace {

void InferSelect(InferContext &c) {
  c.check_dtype(0, "cond", {OPGRAFT_BOOL});
  if (dtype_size(c.input(1).dtype()) == 0) c.fail(OPGRAFT_INVALID_TYPE, "x.dtype is unknown");
  c.check_same_dtype(2, "y", 1, "x");
  c.output(c.input(1).dtype(), c.broadcast(c.input(0).shape(), c.broadcast(c.input(1).shape(), c.input(2).shape())));
}

void KernelSelect(Context &c) {
  const TensorView cond = c.input(0), x = c.input(1), y = c.input(2), out = c.output(0);
  const auto rows = broadcast_rows<3>(out.shape(), {cond.shape(), x.shape(), y.shape()});
  const int64_t size = int64_t(dtype_size(x.dtype()));
  const auto row = SelectRow_simd();
  c.parallel_for(out.size(), 8192, [&](int64_t begin, int64_t end) {
    rows.walk(begin, end, [&](const int64_t(&at)[3], int64_t o, int64_t n) {
      row(size_t(size), cond.data<bool>() + at[0], rows.step[0], x.data<char>() + at[1] * size, rows.step[1],
          y.data<char>() + at[2] * size, rows.step[2], out.data<char>() + o * size, n);
    });
  });
}

void ReferenceSelect(Context &c) {
  const TensorView cond = c.input(0), x = c.input(1), y = c.input(2), out = c.output(0);
  const auto rows = broadcast_rows<3>(out.shape(), {cond.shape(), x.shape(), y.shape()});
  const int64_t size = int64_t(dtype_size(x.dtype()));
  rows.walk(0, out.size(), [&](const int64_t(&at)[3], int64_t o, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const bool first = cond.data<bool>()[at[0] + i * rows.step[0]];
      const char *from = first ? x.data<char>() + (at[1] + i * rows.step[1]) * size
                               : y.data<char>() + (at[2] + i * rows.step[2]) * size;
      std::memcpy(out.data<char>() + (o + i) * size, from, size_t(size));
    }
  });
}

int32_t target_dtype(const Arguments &a) {
  const std::string name = a.attr_string("dtype", "float32");
  const int32_t d = dtype_from_name(name);
  for (int32_t known : {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT8, OPGRAFT_UINT8, OPGRAFT_INT32,
                        OPGRAFT_INT64, OPGRAFT_BOOL})
    if (d == known) return d;
  a.fail(OPGRAFT_INVALID_VALUE,
         "dtype must be one of float32, float16, bfloat16, int8, uint8, int32, int64, bool, got '", name, "'");
}

void InferCast(InferContext &c) {
  c.check_dtype(0, "x",
                {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT8, OPGRAFT_UINT8, OPGRAFT_INT32,
                 OPGRAFT_INT64, OPGRAFT_BOOL});
  c.output(target_dtype(c), c.input(0).shape());
}

void KernelCast(Context &c) {
  const int from = c.input(0).dtype(), to = c.output(0).dtype();
  const int64_t in = int64_t(dtype_size(from)), out = int64_t(dtype_size(to));
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  const auto row = CastRow_simd();
  c.parallel_for(c.output(0).size(), 8192, [&](int64_t b, int64_t e) {
    if (from == to) std::memcpy(y + b * out, x + b * in, size_t((e - b) * in));
    else row(from, to, x + b * in, y + b * out, e - b);
  });
}

void ReferenceCast(Context &c) {
  dispatch<float, float16, bfloat16, int8_t, uint8_t, int32_t, int64_t, bool>(c, c.input(0).dtype(), [&](auto from) {
    dispatch<float, float16, bfloat16, int8_t, uint8_t, int32_t, int64_t, bool>(c, c.output(0).dtype(), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      for (int64_t i = 0; i < c.output(0).size(); ++i)
        c.output(0).data<To>()[i] = convert<To>(c.input(0).data<From>()[i]);
    });
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Select, .inputs = 3, .infer = InferSelect, .kernel = KernelSelect, .reference = ReferenceSelect)
OPGRAFT_OP(Cast, .inputs = 1, .infer = InferCast, .kernel = KernelCast, .reference = ReferenceCast)
#endif
