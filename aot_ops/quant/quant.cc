// QuantV2: int8 or uint8 of scale x + offset, or as models spell it (see Form); AntiQuant: scale (x + offset) of these,
// or scale (x - offset); Dequant: deq_scale x of int32. Scales and offsets are one value, or one for every index of an
// axis.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant.cc"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
#include "opgraft/simd.h"

#ifndef OPGRAFT_QUANT_ONCE
#define OPGRAFT_QUANT_ONCE
namespace opgraft {
// Bits of what a row does besides scale and offset. kPast: its float32 goes past the caches.
enum Form { kPlain = 0, kDivide = 1, kRoundFirst = 2, kRelu = 4, kUnsigned = 8, kPast = 16 };

inline constexpr int kRowsTogether = 4;
// Numbers of one row, or of kRowsTogether rows one after another in memory, whose scales and offsets are the same.
struct QuantSpan {
  const void *x;
  void *y;
  int64_t n, rows;
  const float *scale, *offset;
  int64_t step;  // of scale and offset from one element to the next: 1, or 0
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class D, class Byte> HWY_INLINE hn::Vec<D> LoadByte(D d, const Byte *p) {
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(hn::Rebind<Byte, D>(), p)));
}
template <class D> HWY_INLINE hn::Vec<D> LoadWide(D d, const int8_t *p) { return LoadByte(d, p); }
template <class D> HWY_INLINE hn::Vec<D> LoadWide(D d, const uint8_t *p) { return LoadByte(d, p); }
template <class D> HWY_INLINE hn::Vec<D> LoadWide(D d, const int32_t *p) {
  return hn::ConvertTo(d, hn::LoadU(hn::RebindToSigned<D>(), p));
}
template <class D, class T> HWY_INLINE hn::Vec<D> LoadWide(D d, const T *p) { return LoadF32(d, p); }

// To nearest even, saturating; NaN gives 0.
template <class D> HWY_INLINE void Narrow(hn::Vec<D> v, D d, int8_t *p) {
#if HWY_TARGET == HWY_AVX3
  // What is too small becomes the least integer, which saturates.
  const __m512i i = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(v.raw, v.raw, _CMP_ORD_Q),
                                             _mm512_min_ps(v.raw, _mm512_set1_ps(127.0f)));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtsepi32_epi8(i));
#else
  const hn::Rebind<int8_t, D> d8;
  v = hn::IfThenElse(hn::IsNaN(v), hn::Zero(d), hn::Min(hn::Max(v, hn::Set(d, -128.0f)), hn::Set(d, 127.0f)));
  hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(v)), d8, p);
#endif
}
template <class D> HWY_INLINE void Narrow(hn::Vec<D> v, D d, uint8_t *p) {
  const hn::Rebind<uint8_t, D> d8;
  v = hn::IfThenElse(hn::IsNaN(v), hn::Zero(d), hn::Min(hn::Max(v, hn::Zero(d)), hn::Set(d, 255.0f)));
  hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(v)), d8, p);
}
template <class D, class T> HWY_INLINE void Narrow(hn::Vec<D> v, D d, T *p) { StoreF32(v, d, p); }

// The rows' elements by f(x, scale, offset).
template <class X, class Y, class F> HWY_INLINE void Each(const QuantSpan &s, int form, const F &f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), n = s.n, rows = s.rows, step = s.step;  // not s: y's bytes might be s's
  const X *x = static_cast<const X *>(s.x);
  Y *y = static_cast<Y *>(s.y);
  const float *scale = s.scale, *offset = s.offset;
  const auto at = [&](const float *p, int64_t i) HWY_ATTR { return step ? hn::LoadU(d, p + i) : hn::Set(d, *p); };
  int64_t i = 0;
  const auto vector = [&]() HWY_ATTR { return f(LoadWide(d, x + i), at(scale, i), at(offset, i)); };
  if constexpr (std::is_same_v<Y, float>) {
    if (form & kPast && reinterpret_cast<uintptr_t>(y) % (4 * size_t(lanes)) == 0 && rows == 1)
      for (; i + lanes <= n; i += lanes) hn::Stream(vector(), d, y + i);
  }
  if (rows == kRowsTogether) {
    for (; i + lanes <= n; i += lanes) {
      const auto factor = at(scale, i), shift = at(offset, i);
#pragma GCC unroll 4
      for (int r = 0; r < kRowsTogether; ++r) Narrow(f(LoadWide(d, x + r * n + i), factor, shift), d, y + r * n + i);
    }
  } else {
    for (; i + lanes <= n; i += lanes) Narrow(vector(), d, y + i);
  }
  if (i == n) return;
  HWY_ALIGN X xs[hn::MaxLanes(d)] = {};
  HWY_ALIGN Y ys[hn::MaxLanes(d)];
  HWY_ALIGN float scales[hn::MaxLanes(d)] = {}, offsets[hn::MaxLanes(d)] = {};
  for (int64_t j = i; j < n; ++j) scales[j - i] = scale[j * step], offsets[j - i] = offset[j * step];
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    for (int64_t j = i; j < n; ++j) xs[j - i] = x[j];
    Narrow(f(LoadWide(d, xs), hn::Load(d, scales), hn::Load(d, offsets)), d, ys);
    for (int64_t j = i; j < n; ++j) y[j] = ys[j - i];
  }
}

// The compiler would make one rounding of the product's and the sum's: other results than those of Mul and Add.
template <class V> HWY_INLINE V Rounded(V v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
  return v;
}

// Each step is rounded to float32, as in the operators that it stands for.
template <class T, class Y, bool divide, bool round_first> void QuantiseAs(const QuantSpan &s) {
  const auto f = [](auto v, auto s, auto o) HWY_ATTR {
    v = divide ? hn::Div(v, s) : Rounded(hn::Mul(v, s));
    return round_first ? hn::Trunc(hn::Add(hn::Round(v), o)) : hn::Add(v, o);
  };
  Each<T, Y>(s, kPlain, f);
}
template <class T, class Y> void QuantiseTo(const QuantSpan &s, int form) {
  switch (form & (kDivide | kRoundFirst)) {
    case kPlain: return QuantiseAs<T, Y, false, false>(s);
    case kDivide: return QuantiseAs<T, Y, true, false>(s);
    case kRoundFirst: return QuantiseAs<T, Y, false, true>(s);
    default: return QuantiseAs<T, Y, true, true>(s);
  }
}
template <class T> void Quantise(const QuantSpan &s, int form) {
  if (form & kUnsigned) QuantiseTo<T, uint8_t>(s, form);
  else QuantiseTo<T, int8_t>(s, form);
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
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Quantise)
OPGRAFT_SIMD_FLOATS(FromBytes)
OPGRAFT_SIMD_FLOATS(FromInt32)

namespace {

enum Kind { kQuant, kAnti, kDequant };

const char *scale_name(Kind kind) { return kind == kDequant ? "deq_scale" : "scale"; }

// The axis of x that an input has an element each for; -1: it has one element.
int axis_of(const Arguments &c, int i) {
  const auto x = c.input(0).shape(), s = c.input(i).shape();
  for (size_t k = 0; k < s.size(); ++k)
    if (s[k] != 1) return int(k + x.size() - s.size());
  return -1;
}

void check_channels(const InferContext &c, int i, const char *name) {
  c.check_dtype(i, name, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  const auto x = c.input(0).shape(), s = c.input(i).shape();
  int others = 0;
  bool fits = s.size() <= x.size() || element_count(s) == 1;
  for (size_t k = 0; fits && k < s.size(); ++k) {
    if (s[k] == 1) continue;
    ++others;
    fits = may_equal(s[k], x[k + x.size() - s.size()]);
  }
  c.check(fits && others <= 1, name, ".shape must be x.shape ", x, " with all dimensions but one as 1, got ", s);
}

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

template <Kind kind> void Infer(InferContext &c) {
  if (kind == kQuant) c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  else if (kind == kAnti) c.check_dtype(0, "x", {OPGRAFT_INT8, OPGRAFT_UINT8});
  else c.check_dtype(0, "x", {OPGRAFT_INT32});
  check_channels(c, 1, scale_name(kind));
  if (kind != kDequant) c.check_inputs(2, 3);
  if (kind != kDequant && c.inputs() > 2) {
    check_channels(c, 2, "offset");
    const int a = axis_of(c, 1), b = axis_of(c, 2);
    c.check(a < 0 || b < 0 || a == b, "offset must have the axis of scale, got shapes ", c.input(2).shape(), " and ",
            c.input(1).shape());
  }
  if (kind == kQuant)
    c.check(c.attr_string("rounding_mode", "ROUND") == "ROUND", "rounding_mode must be ROUND, got '",
            c.attr_string("rounding_mode", "ROUND"), "'");
  c.output(output_dtype<kind>(c), c.input(0).shape());
}

// Scale and offset by channel in float32, and how often the channels come round.
struct Channels {
  std::vector<float> scale, offset;
  int64_t channels = 1, inner = 1;
};
template <Kind kind> Channels channels(const Context &c) {
  Channels r;
  const auto x = c.input(0).shape();
  const int axis = std::max(axis_of(c, 1), c.inputs() > 2 ? axis_of(c, 2) : -1);
  r.inner = axis < 0 ? c.input(0).size() : element_count(x.subspan(size_t(axis) + 1));
  r.channels = axis < 0 ? 1 : x[size_t(axis)];
  const auto read = [&](int i, std::vector<float> &to) {
    const TensorView t = c.input(i);
    to.resize(size_t(r.channels));
    dispatch<float, float16, bfloat16>(c, t.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t k = 0; k < r.channels; ++k) to[size_t(k)] = float(t.data<T>()[t.size() == 1 ? 0 : k]);
    });
  };
  if (r.channels == 0) return r;
  read(1, r.scale);
  if (c.inputs() > 2) read(2, r.offset);
  else r.offset.assign(size_t(r.channels), 0.0f);
  if (kind == kAnti && c.attr_bool("subtract_offset", false))
    for (float &o : r.offset) o = -o;
  if (c.attr_bool("sqrt_mode", false))
    for (float &s : r.scale) s *= s;
  return r;
}

template <Kind kind> int form(const Context &c) {
  if (kind == kDequant) return c.attr_bool("relu_flag", false) ? kRelu : kPlain;
  if (kind == kAnti) return c.input(0).dtype() == OPGRAFT_UINT8 ? kUnsigned : kPlain;
  return (c.attr_bool("divide", false) ? kDivide : 0) | (c.attr_bool("round_first", false) ? kRoundFirst : 0) |
         (c.output(0).dtype() == OPGRAFT_UINT8 ? kUnsigned : 0);
}

template <Kind kind> void Kernel(Context &c) {
  const int64_t size = c.input(0).size();
  if (size == 0) return;
  const Channels r = channels<kind>(c);
  const int32_t t = kind == kQuant ? c.input(0).dtype() : c.output(0).dtype();
  const auto f = kind == kQuant ? Quantise_simd(t) : kind == kAnti ? FromBytes_simd(t) : FromInt32_simd(t);
  const int64_t in = int64_t(dtype_size(c.input(0).dtype())), out = int64_t(dtype_size(c.output(0).dtype()));
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  const bool last = r.inner == 1;
  const bool past = goes_past_caches(c);
  const int as = form<kind>(c) | (past ? kPast : 0);
  // Runs of one channel; on the last axis, of all of them, and some together, which read scale and offset once.
  const int64_t run = last ? r.channels : r.inner;
  c.parallel_for(size, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t at = i % run, n = std::min(end - i, run - at), channel = last ? at : i / run % r.channels;
      const int64_t rows = last && !past && n == run && end - i >= kRowsTogether * run ? kRowsTogether : 1;
      f({x + i * in, y + i * out, n, rows, r.scale.data() + channel, r.offset.data() + channel, last ? 1 : 0}, as);
      i += n * rows;
    }
    if (past) hwy::FlushStream();
  });
}

template <Kind kind> void Reference(Context &c) {
  const Channels r = channels<kind>(c);
  const int as = form<kind>(c);
  dispatch<float, float16, bfloat16, int8_t, uint8_t, int32_t>(c, c.input(0).dtype(), [&](auto from) {
    dispatch<float, float16, bfloat16, int8_t, uint8_t>(c, c.output(0).dtype(), [&](auto to) {
      using X = decltype(from);
      using Y = decltype(to);
      for (int64_t i = 0; i < c.input(0).size(); ++i) {
        const size_t k = size_t(i / r.inner % r.channels);
        const double x = double(float(c.input(0).data<X>()[i])), s = double(r.scale[k]), o = double(r.offset[k]);
        if constexpr (sizeof(Y) == 1) {
          const double scaled = as & kDivide ? x / s : x * s;
          const double v = as & kRoundFirst ? std::trunc(std::nearbyint(scaled) + o) : scaled + o;
          const double least = std::numeric_limits<Y>::min(), most = std::numeric_limits<Y>::max();
          c.output(0).data<Y>()[i] = v != v ? Y(0) : Y(std::nearbyint(std::clamp(v, least, most)));
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
