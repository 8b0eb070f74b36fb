// Sepia: y = M x between min_value and max_value, a 3 x 3 matrix over the channels of images [..., 3, H, W], or of
// pixels [..., 3] where the colours lie last; SepiaGrad: its gradient, M^T times dy where a channel was not cut.
#include "opgraft/op.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sepia.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "colours-inl.h"
// clang-format on

#ifndef OPGRAFT_SEPIA_ONCE_
#define OPGRAFT_SEPIA_ONCE_
namespace opgraft {
struct Sepia {
  float m[9];          // by rows
  float least, most;   // infinite: nothing is cut
  const void *x, *dy;  // dy: of the gradient
  void *y;             // or dx
  bool last;           // the colours of a pixel lie side by side
  int64_t pixels;      // of an image: a channel follows the other
};
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// M x of a vector of pixels, cut; or of the gradient M^T times what `dy` gives where it was not.
template <bool kGrad, class D, class Given>
HWY_INLINE Colours<D> Mixed(D d, const Sepia &g, const Colours<D> &x, const Given &dy) {
  const auto least = hn::Set(d, g.least), most = hn::Set(d, g.most);
  // Three elements of the matrix, `step` apart, times a pixel's.
  const auto sum = [&](const float *m, int step, const Colours<D> &v) HWY_ATTR {
    const auto two = hn::MulAdd(hn::Set(d, m[step]), v.g, hn::Mul(hn::Set(d, m[0]), v.r));
    return hn::MulAdd(hn::Set(d, m[2 * step]), v.b, two);
  };
  const Colours<D> y{sum(g.m, 1, x), sum(g.m + 3, 1, x), sum(g.m + 6, 1, x)};
  if constexpr (kGrad) {
    const auto kept = [&](auto v, auto given)
                          HWY_ATTR { return hn::IfThenElseZero(hn::And(hn::Le(v, most), hn::Ge(v, least)), given); };
    const Colours<D> given = dy(), left{kept(y.r, given.r), kept(y.g, given.g), kept(y.b, given.b)};
    return {sum(g.m, 3, left), sum(g.m + 1, 3, left), sum(g.m + 2, 3, left)};
  } else {
    const auto cut = [&](auto v) HWY_ATTR {  // NaN stays
      v = hn::IfThenElse(hn::Lt(v, least), least, v);
      return hn::IfThenElse(hn::Gt(v, most), most, v);
    };
    return {cut(y.r), cut(y.g), cut(y.b)};
  }
}

// `count` pixels from element `at` on of x, dy and y, which lie as Layout has them.
template <bool kGrad, class T, class Layout>
HWY_INLINE void Run(const Sepia &given, const Layout &layout, int64_t at, int64_t count) {
  const Sepia g = given;  // a result that is stored might lie there, for all that the compiler knows
  const hn::ScalableTag<float> d;
  const T *x = static_cast<const T *>(g.x) + at, *dy = static_cast<const T *>(g.dy) + (kGrad ? at : 0);
  T *y = static_cast<T *>(g.y) + at;
  const int64_t lanes = int64_t(hn::Lanes(d)), step = layout.step();
  int64_t p = 0;
  for (; p + lanes <= count; p += lanes)
    layout.store(
        d, Mixed<kGrad>(d, g, layout.load(d, x + p * step), [&]() HWY_ATTR { return layout.load(d, dy + p * step); }),
        y + p * step);
  if (const size_t rest = size_t(count - p))
    layout.store(d,
                 Mixed<kGrad>(d, g, layout.load(d, x + p * step, rest),
                              [&]() HWY_ATTR { return layout.load(d, dy + p * step, rest); }),
                 y + p * step, rest);
}

// Pixels [begin, end) of all images.
template <bool kGrad, class T> HWY_INLINE void Range(const Sepia &g, int64_t begin, int64_t end) {
  if (g.last) return Run<kGrad, T>(g, Together(), 3 * begin, end - begin);
  while (begin < end) {
    const int64_t image = begin / g.pixels, first = begin % g.pixels;
    const int64_t count = std::min(g.pixels - first, end - begin);
    Run<kGrad, T>(g, Planes{g.pixels}, image * 3 * g.pixels + first, count);
    begin += count;
  }
}
template <class T> void Forward(const Sepia &g, int64_t begin, int64_t end) { Range<false, T>(g, begin, end); }
template <class T> void Backward(const Sepia &g, int64_t begin, int64_t end) { Range<true, T>(g, begin, end); }

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Forward)
OPGRAFT_SIMD_FLOATS(Backward)

namespace {

bool colours_last(const Arguments &c) {
  const std::string format = c.attr_string("format", "NCHW");
  c.check(format == "NCHW" || format == "NHWC", "format must be NCHW or NHWC, got '", format, "'");
  return format == "NHWC";
}

// Inputs: the gradient has dy in front. Then x, then the matrix, if there is one.
template <bool grad> void Infer(InferContext &c) {
  constexpr int kX = grad ? 1 : 0;
  c.check_inputs(kX + 1, kX + 2);
  c.check_dtype(0, grad ? "dy" : "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  if (grad) c.check_same_dtype(kX, "x", 0, "dy");
  auto x = c.input(kX).shape();
  const size_t behind = colours_last(c) ? 1 : 3;
  c.check(x.size() >= behind && (x[x.size() - behind] < 0 || x[x.size() - behind] == 3), "x must be ",
          behind == 1 ? "pixels (..., 3)" : "images (..., 3, H, W)", ", got shape ", x);
  if (grad) {
    auto dy = c.input(0).shape();
    bool same = dy.size() == x.size();
    for (size_t i = 0; same && i < x.size(); ++i) same = may_equal(dy[i], x[i]);
    c.check(same, "dy.shape must equal x.shape ", x, ", got ", dy);
  }
  if (c.inputs() > kX + 1) {
    c.check_same_dtype(kX + 1, "matrix", kX, "x");
    auto m = c.input(kX + 1).shape();
    bool ok = m.size() >= 2 && may_equal(m[0], 3) && may_equal(m[1], 3);
    for (size_t i = 2; ok && i < m.size(); ++i) ok = may_equal(m[i], 1);
    c.check(ok && m.size() != 3, "matrix.shape must be (3, 3) or (3, 3, 1, 1), got ", m);
  }
  const double most = c.attr_float("max_value", 1.0), least = c.attr_float("min_value", -HUGE_VAL);
  c.check(least <= most, "min_value must be at most max_value ", most, ", got ", least);
  c.output(c.input(kX).dtype(), x);
}

template <bool grad> Sepia problem(const Context &c) {
  constexpr int kX = grad ? 1 : 0;
  // The coefficients that have become usual, red, green and blue.
  Sepia g{{0.393f, 0.769f, 0.189f, 0.349f, 0.686f, 0.168f, 0.272f, 0.534f, 0.131f},
          0,
          0,
          nullptr,
          nullptr,
          nullptr,
          colours_last(c),
          0};
  g.least = float(c.attr_float("min_value", -HUGE_VAL)), g.most = float(c.attr_float("max_value", 1.0));
  if (c.inputs() > kX + 1)
    dispatch<float, float16, bfloat16>(c, c.input(kX + 1).dtype(), [&](auto zero) {
      for (int i = 0; i < 9; ++i) g.m[i] = float(c.input(kX + 1).data<decltype(zero)>()[i]);
    });
  if (c.attr_bool("transposed", false))
    for (int i : {1, 2, 5}) std::swap(g.m[i], g.m[i % 3 * 3 + i / 3]);
  g.x = c.input(kX).raw(), g.y = c.output(0).raw();
  if (grad) g.dy = c.input(0).raw();
  g.pixels = g.last ? 1 : element_count(c.input(kX).shape().last(2));
  return g;
}

template <bool grad> void Kernel(Context &c) {
  const Sepia g = problem<grad>(c);
  const auto run = grad ? Backward_simd(c.output(0).dtype()) : Forward_simd(c.output(0).dtype());
  // 4096 pixels are 96 KiB of traffic: about 4 µs.
  c.parallel_for(c.output(0).size() / 3, 8192, [&](int64_t begin, int64_t end) { run(g, begin, end); });
}

template <bool grad> void Reference(Context &c) {
  const Sepia g = problem<grad>(c);
  dispatch<float, float16, bfloat16>(c, c.output(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t pixel = 0; pixel < c.output(0).size() / 3; ++pixel) {
      const int64_t at = pixel / g.pixels * 3 * g.pixels + pixel % g.pixels;
      const T *x = static_cast<const T *>(g.x) + at;
      double v[3], kept[3];
      for (int r = 0; r < 3; ++r) {
        v[r] = 0;
        for (int k = 0; k < 3; ++k) v[r] += double(g.m[3 * r + k]) * double(float(x[k * g.pixels]));
        // Cut, or not, as the kernel sees it: in float32.
        const bool keep = float(v[r]) >= g.least && float(v[r]) <= g.most;
        if (grad) kept[r] = keep ? double(float(static_cast<const T *>(g.dy)[at + r * g.pixels])) : 0;
      }
      for (int r = 0; r < 3; ++r) {
        double out = v[r] > double(g.most) ? double(g.most) : v[r] < double(g.least) ? double(g.least) : v[r];
        if (grad) {
          out = 0;
          for (int k = 0; k < 3; ++k) out += double(g.m[3 * k + r]) * kept[k];
        }
        static_cast<T *>(g.y)[at + r * g.pixels] = T(float(out));
      }
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Sepia, .inputs = -1, .infer = Infer<false>, .kernel = Kernel<false>, .reference = Reference<false>)
OPGRAFT_OP(SepiaGrad, .inputs = -1, .infer = Infer<true>, .kernel = Kernel<true>, .reference = Reference<true>)
#endif
