// QuantV2: int8 or uint8 of scale x + offset, within limits, or as models spell it (see Form); AntiQuant: scale (x +
// offset) of these, or scale (x - offset); Dequant: deq_scale x of int32. Scales and offsets are one value, or one for
// every index of an axis.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant.cc"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/channels-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Each step is rounded to float32, as in the operators that it stands for.
template <class T, class Y, bool limited, bool divide, bool round_first> void QuantiseAs(const QuantSpan &s) {
  const hn::ScalableTag<float> d;
  const auto least = hn::Set(d, s.least), most = hn::Set(d, s.most);
  const auto f = [&](auto v, auto s, auto o) HWY_ATTR {
    v = divide ? hn::Div(v, s) : Rounded(hn::Mul(v, s));
    v = round_first ? hn::Trunc(hn::Add(hn::Round(v), o)) : hn::Add(v, o);
    return limited ? Within(v, least, most) : v;
  };
  Each<T, Y>(s, kPlain, f);
}
template <class T, class Y, bool limited> void QuantiseTo(const QuantSpan &s, int form) {
  switch (form & (kDivide | kRoundFirst)) {
    case kPlain: return QuantiseAs<T, Y, limited, false, false>(s);
    case kDivide: return QuantiseAs<T, Y, limited, true, false>(s);
    case kRoundFirst: return QuantiseAs<T, Y, limited, false, true>(s);
    default: return QuantiseAs<T, Y, limited, true, true>(s);
  }
}
template <class T, class Y> void QuantiseWithin(const QuantSpan &s, int form) {
  if (form & kLimited) QuantiseTo<T, Y, true>(s, form);
  else QuantiseTo<T, Y, false>(s, form);
}
template <class T> void Quantise(const QuantSpan &s, int form) {
  if (form & kUnsigned) QuantiseWithin<T, uint8_t>(s, form);
  else QuantiseWithin<T, int8_t>(s, form);
}
template <class T> void FromBytes(const QuantSpan &s, int form) {
  const auto f = [](auto v, auto s, auto o) HWY_ATTR { return hn::Mul(hn::Add(v, o), s); };
  if (form & kUnsigned) Each<uint8_t, T>(s, form, f);
  else Each<int8_t, T>(s, form, f);
}
template <class T> void FromInt32(const QuantSpan &s, int form) {
  const hn::ScalableTag<float> d;
  const auto least = hn::Set(d, form & kRelu ? 0.0f : -HUGE_VALF);
  const auto f = [&](auto v, auto s, auto) HWY_ATTR {
    v = hn::Mul(v, s);
    return hn::IfThenElse(hn::Lt(v, least), least, v);  // keeps NaN
  };
  Each<int32_t, T>(s, form, f);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/channels.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Quantise)
OPGRAFT_SIMD_FLOATS(FromBytes)
OPGRAFT_SIMD_FLOATS(FromInt32)

namespace {

enum Kind { kQuant, kAnti, kDequant };

const char *scale_name(Kind kind) { return kind == kDequant ? "deq_scale" : "scale"; }

template <Kind kind> int32_t output_dtype(const Arguments &c) {
  const char *attr = kind == kQuant ? "dst_type" : "dtype";
  const std::string name = c.attr_string(attr, kind == kQuant ? "int8" : "float16");
  const int32_t d = dtype_from_name(name);
  if (kind == kQuant) {
    c.check(d == OPGRAFT_INT8 || d == OPGRAFT_UINT8, "dst_type must be int8 or uint8, got '", name, "'");
    return d;
  }
  for (int32_t known : {OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_FLOAT32})
    if (d == known) return d;
  c.fail(OPGRAFT_INVALID_TYPE, "dtype must be one of float16, bfloat16, float32, got '", name, "'");
}

std::pair<float, float> range(int32_t dtype) {
  return dtype == OPGRAFT_UINT8 ? std::pair(0.0f, 255.0f) : std::pair(-128.0f, 127.0f);
}
// What codes lie within; the defaults are all that their dtype holds.
std::pair<float, float> limits(const Arguments &c, int32_t dtype) {
  if (dtype != OPGRAFT_INT8 && dtype != OPGRAFT_UINT8) return {};
  const float least = float(c.attr_float("quant_min", -128.0)), most = float(c.attr_float("quant_max", 255.0));
  return least == -128 && most == 255 ? range(dtype) : std::pair(least, most);
}

template <Kind kind> void Infer(InferContext &c) {
  if (kind == kQuant) c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  else if (kind == kAnti) c.check_dtype(0, "x", {OPGRAFT_INT8, OPGRAFT_UINT8});
  else c.check_dtype(0, "x", {OPGRAFT_INT32});
  check_floats(c, 1, scale_name(kind));
  check_channels(c, 1, scale_name(kind));
  if (kind != kDequant) c.check_inputs(2, 3);
  if (kind != kDequant && c.inputs() > 2) {
    if (kind == kAnti) c.check_dtype(2, "offset", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32});
    else check_floats(c, 2, "offset");
    check_channels(c, 2, "offset");
    check_same_axis(c, 2, "offset", 1, "scale");
  }
  const int32_t dtype = output_dtype<kind>(c);
  if (kind == kQuant) {
    c.check(c.attr_string("rounding_mode", "ROUND") == "ROUND", "rounding_mode must be ROUND, got '",
            c.attr_string("rounding_mode", "ROUND"), "'");
    const auto [least, most] = limits(c, dtype);
    const auto [lowest, highest] = range(dtype);
    c.check(
        lowest <= least && least <= most && most <= highest && least == std::floor(least) && most == std::floor(most),
        "quant_min and quant_max must be whole numbers in order from ",
        dtype == OPGRAFT_UINT8 ? "0 to 255" : "-128 to 127", ", got ", least, " and ", most);
  }
  c.output(dtype, c.input(0).shape());
}

// Scale and offset by channel.
template <Kind kind> struct Factors {
  explicit Factors(const Context &c)
      : channels(channels_of(c)), scale(c, channels, 1, 1.0f), offset(c, channels, 2, 0.0f) {
    if (kind == kAnti && c.attr_bool("subtract_offset", false)) offset.change(channels, [](float o) { return -o; });
    if (c.attr_bool("sqrt_mode", false)) scale.change(channels, [](float s) { return s * s; });
  }
  Channels channels;
  ByChannel scale, offset;
};

template <Kind kind> int form(const Context &c) {
  if (kind == kDequant) return c.attr_bool("relu_flag", false) ? kRelu : kPlain;
  if (kind == kAnti) return c.input(0).dtype() == OPGRAFT_UINT8 ? kUnsigned : kPlain;
  return (c.attr_bool("divide", false) ? kDivide : 0) | (c.attr_bool("round_first", false) ? kRoundFirst : 0) |
         (c.output(0).dtype() == OPGRAFT_UINT8 ? kUnsigned : 0);
}

template <Kind kind> void Kernel(Context &c) {
  if (c.input(0).size() == 0) return;
  const Factors<kind> r(c);
  const int32_t t = kind == kQuant ? c.input(0).dtype() : c.output(0).dtype();
  const auto f = kind == kQuant ? Quantise_simd(t) : kind == kAnti ? FromBytes_simd(t) : FromInt32_simd(t);
  const int64_t in = int64_t(dtype_size(c.input(0).dtype())), out = int64_t(dtype_size(c.output(0).dtype()));
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  const int64_t step = r.channels.inner == 1;
  const auto [least, most] = limits(c, c.output(0).dtype());
  const int as = form<kind>(c) | (std::pair(least, most) == range(c.output(0).dtype()) ? 0 : kLimited);
  each_run(c, r.channels, kRowsTogether, [&](int64_t i, int64_t n, int64_t rows, int64_t channel, bool past) {
    f({x + i * in, y + i * out, n, rows, r.scale.data() + channel, r.offset.data() + channel, step, least, most,
       nullptr},
      as | (past ? kPast : 0));
  });
}

template <Kind kind> void Reference(Context &c) {
  if (c.input(0).size() == 0) return;
  const Factors<kind> r(c);
  const int as = form<kind>(c);
  const auto [least, most] = limits(c, c.output(0).dtype());
  dispatch<float, float16, bfloat16, int8_t, uint8_t, int32_t>(c, c.input(0).dtype(), [&](auto from) {
    dispatch<float, float16, bfloat16, int8_t, uint8_t>(c, c.output(0).dtype(), [&](auto to) {
      using X = decltype(from);
      using Y = decltype(to);
      for (int64_t i = 0; i < c.input(0).size(); ++i) {
        const size_t k = size_t(i / r.channels.inner % r.channels.count);
        const double x = double(float(c.input(0).data<X>()[i])), s = double(r.scale.data()[k]),
                     o = double(r.offset.data()[k]);
        if constexpr (sizeof(Y) == 1) {
          const double scaled = as & kDivide ? x / s : x * s;
          const double v = as & kRoundFirst ? std::trunc(std::nearbyint(scaled) + o) : scaled + o;
          c.output(0).data<Y>()[i] = v != v ? Y(0) : Y(std::nearbyint(std::clamp(v, double(least), double(most))));
        } else {
          const double v = (x + o) * s;
          c.output(0).data<Y>()[i] = Y(float(as == kRelu && v < 0 ? 0.0 : v));
        }
      }
    });
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_QUANT(Name, n, kind)                                        \
  OPGRAFT_OP(Name, .inputs = n, .infer = ::opgraft::Infer<::opgraft::kind>, \
             .kernel = ::opgraft::Kernel<::opgraft::kind>, .reference = ::opgraft::Reference<::opgraft::kind>)
OPGRAFT_QUANT(QuantV2, -1, kQuant)
OPGRAFT_QUANT(AntiQuant, -1, kAnti)
OPGRAFT_QUANT(Dequant, 2, kDequant)
#endif
