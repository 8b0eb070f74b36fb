// Gradients of activations: dx = dy f'(x). GeLUGrad by tanh or erf (Hendrycks and Gimpel 2016), SiLUGrad (Elfwing et
// al. 2017), ReluGrad, ReLU6Grad. Any shape; the halves compute in float32 and round once.
#include "opgraft/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "activation_grad.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/gelu-inl.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

#ifndef OPGRAFT_ACTIVATION_GRAD_ONCE
#define OPGRAFT_ACTIVATION_GRAD_ONCE
namespace opgraft {
enum Slope { kGeLU, kGeLUErf, kSiLU, kRelu, kReLU6 };
}
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void Gradient(Slope of, const void *vx, const void *vdy, void *vdx, int64_t n) {
  const T *x = static_cast<const T *>(vx), *dy = static_cast<const T *>(vdy);
  T *dx = static_cast<T *>(vdx);
  switch (of) {
    case kGeLU:
      return Map([](auto d, auto v, auto g) HWY_ATTR { return hn::Mul(g, GeluTanhSlope<T>(d, v)); }, dx, n, x, dy);
    case kGeLUErf:
      return Map([](auto d, auto v, auto g) HWY_ATTR { return hn::Mul(g, GeluErfSlope(d, v)); }, dx, n, x, dy);
    case kSiLU:
      return Map([](auto d, auto v, auto g) HWY_ATTR { return hn::Mul(g, SiluWithSlope<T>(d, v).slope); }, dx, n, x,
                 dy);
    case kRelu:
      return Map([](auto d, auto v, auto g) HWY_ATTR { return hn::IfThenElseZero(hn::Gt(v, hn::Zero(d)), g); }, dx, n,
                 x, dy);
    case kReLU6:
      return Map(
          [](auto d, auto v, auto g) HWY_ATTR {
            const auto within = hn::And(hn::Gt(v, hn::Zero(d)), hn::Le(v, hn::Set(d, 6.0f)));
            return hn::IfThenElseZero(within, g);
          },
          dx, n, x, dy);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Gradient)

namespace {

constexpr int64_t kGrain = 16384;  // elements: 2 to 6 µs of work, above the cost of a hand-over

// GeLUGrad's attribute `approximate` chooses between the two formulas.
template <Slope slope> Slope chosen(const Arguments &a) {
  if constexpr (slope != kGeLU) return slope;
  const std::string form = a.attr_string("approximate", "tanh");
  a.check(form == "tanh" || form == "none", "approximate must be 'tanh' or 'none', got '", form, "'");
  return form == "none" ? kGeLUErf : kGeLU;
}

template <Slope slope> void Infer(InferContext &c) {
  c.check_inputs(2, slope == kGeLU ? 3 : 2);
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  for (int i = 1; i < c.inputs(); ++i) {
    const char *name = i == 2 ? "y" : slope == kGeLU ? "dy" : slope == kSiLU ? "dout" : "y_backprop";
    c.check_same_dtype(i, name, 0, "x");
    c.check_same_shape(i, name, 0, "x");
  }
  chosen<slope>(c);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

template <Slope slope> void Kernel(Context &c) {
  const auto kernel = Gradient_simd(c.input(0).dtype());
  const Slope of = chosen<slope>(c);
  const char *x = c.input(0).data<char>(), *dy = c.input(1).data<char>();
  char *dx = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.output(0).size(), kGrain,
                 [&](int64_t b, int64_t e) { kernel(of, x + b * size, dy + b * size, dx + b * size, e - b); });
}

double slope_of(Slope of, double x) {
  switch (of) {
    case kGeLU: {
      const double v = std::fmin(std::fmax(x, -20), 20);  // beyond it 0 and 1, not 0 * inf
      const double u2 = 1.5957691216057308 * (v + 0.044715 * v * v * v), s = 1 / (1 + std::exp(-u2));
      const double steep = 1.5957691216057308 * (v + 3 * 0.044715 * v * v * v);
      return x != x ? x : s * (1 + steep / (1 + std::exp(u2)));
    }
    case kGeLUErf: {
      const double v = std::fmin(std::fmax(x, -40), 40);
      return x != x ? x : 0.5 * std::erfc(v * -0.70710678118654752) + v * 0.3989422804014327 * std::exp(-0.5 * v * v);
    }
    case kSiLU: {
      const double v = std::fmin(std::fmax(x, -800), 800), s = 1 / (1 + std::exp(-v));
      return x != x ? x : s * (1 + v / (1 + std::exp(v)));
    }
    case kRelu: return x > 0;
    case kReLU6: return x > 0 && x <= 6;
  }
  return 0;
}

// From here down the derivative is 0 to float32, since its exponential is: an infinite gradient times it is NaN.
double vanishes_at(Slope of) { return of == kGeLU ? -10.031 : of == kGeLUErf ? -13.216 : -88.0297; }

template <Slope slope> void Reference(Context &c) {
  const Slope of = chosen<slope>(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>(), *dy = c.input(1).data<T>();
    for (int64_t i = 0; i < c.output(0).size(); ++i) {
      const double at = float(x[i]), g = float(dy[i]);
      double v = slope_of(of, at);
      const bool cuts = of == kRelu || of == kReLU6, none = v == 0 && cuts;  // inf and NaN are not passed on there
      if (!cuts && std::isinf(g) && at <= vanishes_at(of)) v = 0;
      c.output(0).data<T>()[i] = none ? T(0.0f) : T(float(g * v));
    }
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_GRADIENT(Name, slope, count)                                     \
  OPGRAFT_OP(Name, .inputs = count, .infer = ::opgraft::Infer<::opgraft::slope>, \
             .kernel = ::opgraft::Kernel<::opgraft::slope>, .reference = ::opgraft::Reference<::opgraft::slope>)
OPGRAFT_GRADIENT(GeLUGrad, kGeLU, -1)
OPGRAFT_GRADIENT(SiLUGrad, kSiLU, 2)
OPGRAFT_GRADIENT(ReluGrad, kRelu, 2)
OPGRAFT_GRADIENT(ReLU6Grad, kReLU6, 2)
#endif
