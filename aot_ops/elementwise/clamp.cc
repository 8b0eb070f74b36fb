// ClampScalar: min(max(x, min), max) by two numbers. A NaN stays one.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "clamp.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void Clamp(const void *from, void *to, int64_t n, float least, float most) {
  const auto clamp = [&](auto d, auto v) HWY_ATTR {
    const auto low = hn::Set(d, least), high = hn::Set(d, most);
    v = hn::IfThenElse(hn::Lt(v, low), low, v);
    return hn::IfThenElse(hn::Gt(v, high), high, v);
  };
  Map(clamp, static_cast<T *>(to), n, static_cast<const T *>(from));
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Clamp)

namespace {

double limit(const Arguments &c, const char *name) { return c.attr_float(name, name[1] == 'i' ? -HUGE_VAL : HUGE_VAL); }

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64});
  const int32_t t = c.input(0).dtype();
  for (const char *name : {"min", "max"}) {
    const double v = limit(c, name);
    c.check(!std::isnan(v), name, " must be a number, got nan");
    c.check((t != OPGRAFT_INT32 && t != OPGRAFT_INT64) || std::isinf(v) || std::trunc(v) == v, name,
            " must be a whole number for ", dtype_name(t), ", got ", v);
  }
  c.output(t, c.input(0).shape());
}

// Integers are compared as they are, floats as float32.
template <class T> using Compared = std::conditional_t<std::is_integral_v<T>, T, float>;

// The limits as T holds them.
template <class T> std::pair<Compared<T>, Compared<T>> limits(const Arguments &c) {
  const auto as = [](double v) -> Compared<T> {
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      return v >= -double(Limits::min()) ? Limits::max() : v <= double(Limits::min()) ? Limits::min() : T(v);
    } else {
      return float(T(float(v)));
    }
  };
  return {as(limit(c, "min")), as(limit(c, "max"))};
}

template <class T> void Plain(const T *x, T *y, int64_t n, std::pair<Compared<T>, Compared<T>> to) {
  for (int64_t i = 0; i < n; ++i) {
    const Compared<T> v(x[i]), low = v < to.first ? to.first : v;
    y[i] = T(low > to.second ? to.second : low);
  }
}

void Kernel(Context &c) {
  dispatch<float, float16, bfloat16, int32_t, int64_t>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    T *y = c.output(0).data<T>();
    const auto to = limits<T>(c);
    c.parallel_for(c.output(0).size(), 16384, [&](int64_t b, int64_t e) {
      if constexpr (std::is_integral_v<T>) Plain(x + b, y + b, e - b, to);
      else Clamp_simd(c.input(0).dtype())(x + b, y + b, e - b, to.first, to.second);
    });
  });
}

void Reference(Context &c) {
  dispatch<float, float16, bfloat16, int32_t, int64_t>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    Plain(c.input(0).data<T>(), c.output(0).data<T>(), c.output(0).size(), limits<T>(c));
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(ClampScalar, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
