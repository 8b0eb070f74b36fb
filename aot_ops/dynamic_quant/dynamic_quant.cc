// DynamicQuantExt: every row of x as int8 and what its codes are to be multiplied by; with `divide` as models spell it,
// each step rounded to float32.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dynamic_quant.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/quantise-inl.h"
// clang-format on

#ifndef OPGRAFT_DYNAMIC_QUANT_ONCE
#define OPGRAFT_DYNAMIC_QUANT_ONCE
namespace opgraft {
// scale = max(max(max |x|, least_max) / levels, least_scale), times inverse_levels instead where that is not NaN; the
// codes are x / scale within quant_min and quant_max.
struct Spelled {
  float levels, inverse_levels, least_max, least_scale, quant_min, quant_max;
  // NaN stays NaN.
  float scale(float largest) const {
    const auto at_least = [](float v, float least) { return v >= least || v != v ? v : least; };
    largest = at_least(largest, least_max);
    return at_least(inverse_levels == inverse_levels ? largest * inverse_levels : largest / levels, least_scale);
  }
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void QuantiseOneRow(const void *x, const void *smooth, int64_t n, int8_t *codes, float *scale) {
  *scale = QuantiseRun<T>(static_cast<const T *>(x), static_cast<const T *>(smooth), n, codes).scale;
}

template <class T>
void DivideOneRow(const void *row, const void *factors, int64_t n, int8_t *codes, float *scale, const Spelled &rule) {
  const RowTimes<T> x{static_cast<const T *>(row), static_cast<const T *>(factors), n};
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto most = hn::Zero(di);  // bits without a sign are in the order of what they are, NaN above all
  for (int64_t i = 0; i < n; i += lanes) most = hn::Max(most, hn::BitCast(di, hn::Abs(x.load(d, i))));
  const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, most));
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  *scale = rule.scale(largest);
  const auto divisor = hn::Set(d, *scale), low = hn::Set(d, rule.quant_min), high = hn::Set(d, rule.quant_max);
  for (int64_t i = 0; i < n; i += lanes) {
    auto v = hn::Div(x.load(d, i), divisor);
    v = hn::IfThenElse(hn::IsNaN(v), hn::Zero(d), hn::Min(hn::Max(v, low), high));
    const auto bytes = hn::DemoteTo(d8, hn::NearestInt(v));
    if (n - i >= lanes) {
      hn::StoreU(bytes, d8, codes + i);
    } else {
      HWY_ALIGN int8_t last[hn::MaxLanes(d)];
      hn::Store(bytes, d8, last);
      for (int64_t j = i; j < n; ++j) codes[j] = last[j - i];
    }
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(QuantiseOneRow)
OPGRAFT_SIMD_FLOATS(DivideOneRow)

namespace {

enum { kX, kSmooth };

bool divides(const Arguments &c) { return c.attr_bool("divide", false); }
Spelled spelled(const Arguments &c) {
  const auto number = [&](const char *name, double otherwise) { return float(c.attr_float(name, otherwise)); };
  return {number("levels", 127.0),     number("inverse_levels", std::nan("")),
          number("least_max", 0.0),    number("least_scale", 0.0),
          number("quant_min", -128.0), number("quant_max", 127.0)};
}

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
  const Spelled r = spelled(c);
  const bool plain = r.levels == 127 && std::isnan(r.inverse_levels) && r.least_max == 0 && r.least_scale == 0 &&
                     r.quant_min == -128 && r.quant_max == 127;
  c.check(plain || divides(c),
          "levels, inverse_levels, least_max, least_scale, quant_min and quant_max must be given "
          "with divide alone");
  c.check(r.levels > 0 && !(r.inverse_levels < 0), "levels must be above 0 and inverse_levels at least 0, got ",
          r.levels, " and ", r.inverse_levels);
  const auto code = [](float v) { return v >= -128 && v <= 127 && v == std::floor(v); };
  c.check(code(r.quant_min) && code(r.quant_max) && r.quant_min <= r.quant_max,
          "quant_min and quant_max must be whole numbers in order from -128 to 127, got ", r.quant_min, " and ",
          r.quant_max);
  Shape scale(x.begin(), x.end() - 1);
  if (c.attr_bool("keep_dims", false)) scale.push_back(1);
  c.output(OPGRAFT_INT8, x);
  c.output(OPGRAFT_FLOAT32, scale);
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
  const auto divide = DivideOneRow_simd(c.input(kX).dtype());
  const bool as_spelled = divides(c);
  const Spelled rule = spelled(c);
  const int64_t row = r.n * int64_t(dtype_size(c.input(kX).dtype()));
  const char *x = c.input(kX).data<char>();
  auto *y = c.output(0).data<int8_t>();
  auto *scale = c.output(1).data<float>();
  c.parallel_for(r.count, std::max<int64_t>(1, 32768 / std::max<int64_t>(r.n, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (as_spelled) divide(x + i * row, smooth(c), r.n, y + i * r.n, scale + i, rule);
      else if (r.n == 0) scale[i] = 0;
      else quantise(x + i * row, smooth(c), r.n, y + i * r.n, scale + i);
  });
}

// Each step in float32, as the operators that it stands for.
void DivideReference(Context &c) {
  const Rows r = rows(c);
  const Spelled rule = spelled(c);
  dispatch<float, float16, bfloat16>(c, c.input(kX).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto *factor = static_cast<const T *>(smooth(c));
    for (int64_t i = 0; i < r.count; ++i) {
      const auto value = [&](int64_t j) {
        return float(c.input(kX).data<T>()[i * r.n + j]) * (factor ? float(factor[j]) : 1.0f);
      };
      float largest = 0;
      for (int64_t j = 0; j < r.n; ++j)
        if (const float size = std::fabs(value(j)); largest == largest && !(size <= largest)) largest = size;
      const float scale = c.output(1).data<float>()[i] = rule.scale(largest);
      for (int64_t j = 0; j < r.n; ++j) {
        const float v = value(j) / scale;
        c.output(0).data<int8_t>()[i * r.n + j] =
            v != v ? int8_t(0) : int8_t(std::nearbyint(std::clamp(v, rule.quant_min, rule.quant_max)));
      }
    }
  });
}

void Reference(Context &c) {
  if (divides(c)) return DivideReference(c);
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
