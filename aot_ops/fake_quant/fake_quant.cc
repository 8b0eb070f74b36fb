// FakeQuantize: scale (clip(round(x / scale) + zero_point) - zero_point), what quantising does to numbers that stay
// floats. Each step is rounded to float32, as in the operators that it stands for.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <optional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fake_quant.cc"
#include "hwy/foreach_target.h"
#include "hwy/cache_control.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/channels-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T, bool divide, bool shifted, bool round_first> void FakeQuantizeAs(const QuantSpan &s, int form) {
  const hn::ScalableTag<float> d;
  const auto least = hn::Set(d, s.least), most = hn::Set(d, s.most);
  const auto f = [&](auto v, auto scale, auto zero, auto... inverse) HWY_ATTR {
    if constexpr (divide) v = hn::Div(v, scale);
    else v = Rounded(hn::Mul(v, inverse...));
    if constexpr (!shifted) return hn::Mul(Within(hn::Round(v), least, most), scale);
    v = round_first ? hn::Add(hn::Round(v), zero) : hn::Round(hn::Add(v, zero));
    return hn::Mul(hn::Sub(Within(v, least, most), zero), scale);
  };
  Each<T, T, !divide>(s, form, f);
}
template <class T, bool divide> void FakeQuantizeBy(const QuantSpan &s, int form) {
  if (!s.offset) {
    QuantSpan plain = s;
    plain.offset = s.scale;  // it is not looked at
    return FakeQuantizeAs<T, divide, false, true>(plain, form);
  }
  if (form & kRoundFirst) FakeQuantizeAs<T, divide, true, true>(s, form);
  else FakeQuantizeAs<T, divide, true, false>(s, form);
}
template <class T> void FakeQuantizeRow(const QuantSpan &s, int form) {
  if (form & kDivide) FakeQuantizeBy<T, true>(s, form);
  else FakeQuantizeBy<T, false>(s, form);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/channels.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(FakeQuantizeRow)

namespace {

enum { kX, kScale, kZero, kInverse };

void Infer(InferContext &c) {
  c.check_inputs(2, 4);
  check_floats(c, kX, "x");
  const char *names[] = {"x", "scale", "zero_point", "inverse"};
  for (int i = kScale; i < c.inputs(); ++i) {
    if (i != kScale && element_count(c.input(i).shape()) == 0) continue;
    check_floats(c, i, names[i]);
    check_channels(c, i, names[i]);
    for (int k = kScale; k < i; ++k)
      if (k == kScale || element_count(c.input(k).shape()) != 0) check_same_axis(c, i, names[i], k, names[k]);
  }
  const double least = c.attr_float("quant_min", -128.0), most = c.attr_float("quant_max", 127.0);
  c.check(least <= most, "quant_min must be at most quant_max of ", most, ", got ", least);
  c.output(c.input(kX).dtype(), c.input(kX).shape());
}

struct Factors {
  explicit Factors(const Context &c)
      : channels(channels_of(c)),
        scale(c, channels, kScale, 1.0f),
        least(float(c.attr_float("quant_min", -128.0))),
        most(float(c.attr_float("quant_max", 127.0))),
        form(c.attr_bool("round_first", true) ? kRoundFirst : 0) {
    if (ByChannel::has(c, kZero)) zero.emplace(c, channels, kZero, 0.0f);
    if (ByChannel::has(c, kInverse)) inverse.emplace(c, channels, kInverse, 1.0f);
    else form |= kDivide;
  }
  Channels channels;
  ByChannel scale;
  std::optional<ByChannel> zero{}, inverse{};
  float least, most;
  int form;
};

void Kernel(Context &c) {
  if (c.input(kX).size() == 0) return;
  const Factors r(c);
  const auto f = FakeQuantizeRow_simd(c.input(kX).dtype());
  const int64_t size = int64_t(dtype_size(c.input(kX).dtype())), step = r.channels.inner == 1;
  const char *x = c.input(kX).data<char>();
  char *y = c.output(0).data<char>();
  const auto from = [](const std::optional<ByChannel> &v, int64_t channel) {
    return v ? v->data() + channel : nullptr;
  };
  each_run(c, r.channels, kRowsTogether, [&](int64_t i, int64_t n, int64_t rows, int64_t channel, bool past) {
    f({x + i * size, y + i * size, n, rows, r.scale.data() + channel, from(r.zero, channel), step, r.least, r.most,
       from(r.inverse, channel)},
      r.form | (past ? kPast : 0));
  });
}

void Reference(Context &c) {
  if (c.input(kX).size() == 0) return;
  const Factors r(c);
  dispatch<float, float16, bfloat16>(c, c.input(kX).dtype(), [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < c.input(kX).size(); ++i) {
      const size_t k = size_t(i / r.channels.inner % r.channels.count);
      const double x = double(float(c.input(kX).data<T>()[i])), scale = double(r.scale.data()[k]);
      const double zero = r.zero ? double(r.zero->data()[k]) : 0.0;
      const double scaled = r.inverse ? x * double(r.inverse->data()[k]) : x / scale;
      double v = r.form & kRoundFirst ? std::nearbyint(scaled) + zero : std::nearbyint(scaled + zero);
      if (v == v) v = std::clamp(v, double(r.least), double(r.most));
      c.output(0).data<T>()[i] = T(float((v - zero) * scale));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(FakeQuantize, .inputs = -1, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
