// SwiGLU and its gradient: y = x SiLU(gate) = x gate / (1 + e^-gate)   (Shazeer 2020, "GLU Variants Improve
// Transformer"), of two tensors, of one that holds x and gate in turn, and of one whose halves they are. Any shape;
// float16 and bfloat16 compute in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "swiglu.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/stream-inl.h"
#include "halves-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class V> struct Gradients { V x, gate; };
// a b slope where a b overflows: the slope is at most 1.1, and may make it a number that float32 holds. The larger one
// times half of it holds in any case, and what underflows then is no more than the result.
template <class D, class V = hn::Vec<D>> HWY_INLINE V LargeProduct(D d, V a, V b, V slope) {
  const auto less = hn::Lt(hn::Abs(a), hn::Abs(b));
  const V most = hn::IfThenElse(less, b, a), least = hn::IfThenElse(less, a, b);
  const V half = hn::Mul(hn::Mul(most, hn::Mul(slope, hn::Set(d, 0.5f))), least);
  return hn::Add(half, half);
}
// dy SiLU(gate) and dy x SiLU'(gate).
template <class T, class D, class V = hn::Vec<D>> HWY_INLINE Gradients<V> Gradient(D d, V x, V gate, V dy) {
  const auto silu = SiluWithSlope<T>(d, gate);
  const V both = hn::Mul(dy, x);
  V dgate = hn::Mul(both, silu.slope);
  if constexpr (!std::is_same_v<T, ::opgraft::float16>)  // whose products float32 holds
    if (const auto held = hn::Lt(hn::Abs(both), hn::Set(d, HUGE_VALF)); HWY_UNLIKELY(!hn::AllTrue(d, held)))
      dgate = hn::IfThenElse(held, dgate, LargeProduct(d, dy, x, silu.slope));
  return {hn::Mul(dy, silu.y), dgate};
}

template <class T> void Separate(const void *x, const void *gate, void *y, int64_t n, bool past) {
  MapPast(
      past, [](auto d, auto v, auto g) HWY_ATTR { return hn::Mul(v, Silu<T>(d, g)); }, static_cast<T *>(y), n,
      static_cast<const T *>(x), static_cast<const T *>(gate));
}
template <class T>
void SeparateGrad(const void *x, const void *gate, const void *dy, void *dx, void *dgate, int64_t n) {
  MapTwo([](auto d, auto v, auto g, auto t) HWY_ATTR { return Gradient<T>(d, v, g, t); }, static_cast<T *>(dx),
         static_cast<T *>(dgate), n, static_cast<const T *>(x), static_cast<const T *>(gate),
         static_cast<const T *>(dy));
}

// x and gate alternate: the pair (x, gate), or (gate, x), of output i lies at 2i.
template <class T, bool kGateFirst> HWY_INLINE void InterleavedOf(const void *pairs, void *to, int64_t n, bool past) {
  const T *xg = static_cast<const T *>(pairs);
  T *y = static_cast<T *>(to);
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto of = [&](auto v) HWY_ATTR {
    return kGateFirst ? hn::Mul(v.odd, Silu<T>(d, v.even)) : hn::Mul(v.even, Silu<T>(d, v.odd));
  };
  if constexpr (std::is_same_v<T, float>) {
    if (past)
      return StreamAll(
          d, y, n, [&](int64_t i) HWY_ATTR { return of(LoadPairs(d, xg + 2 * i)); },
          [&](int64_t i, size_t k) HWY_ATTR { return of(LoadPairsN(d, xg + 2 * i, k)); });
  }
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(of(LoadPairs(d, xg + 2 * i)), d, y + i);
  if (size_t rest = size_t(n - i)) StoreF32N(of(LoadPairsN(d, xg + 2 * i, rest)), d, y + i, rest);
}
template <class T> void Interleaved(const void *pairs, void *to, int64_t n, bool gate_first, bool past) {
  (gate_first ? InterleavedOf<T, true> : InterleavedOf<T, false>)(pairs, to, n, past);
}
template <class T, bool kGateFirst>
HWY_INLINE void InterleavedGradOf(const void *pairs, const void *gradient, void *to, int64_t n) {
  const T *xg = static_cast<const T *>(pairs), *dy = static_cast<const T *>(gradient);
  T *dxg = static_cast<T *>(to);
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto of = [&](auto v, auto t) HWY_ATTR {
    const auto g = kGateFirst ? Gradient<T>(d, v.odd, v.even, t) : Gradient<T>(d, v.even, v.odd, t);
    return kGateFirst ? Neighbours<decltype(t)>{g.gate, g.x} : Neighbours<decltype(t)>{g.x, g.gate};
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StorePairs(of(LoadPairs(d, xg + 2 * i), LoadF32(d, dy + i)), d, dxg + 2 * i);
  if (size_t rest = size_t(n - i))
    StorePairsN(of(LoadPairsN(d, xg + 2 * i, rest), LoadF32N(d, dy + i, rest)), d, dxg + 2 * i, rest);
}
template <class T> void InterleavedGrad(const void *pairs, const void *gradient, void *to, int64_t n, bool gate_first) {
  (gate_first ? InterleavedGradOf<T, true> : InterleavedGradOf<T, false>)(pairs, gradient, to, n);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Separate)
OPGRAFT_SIMD_FLOATS(SeparateGrad)
OPGRAFT_SIMD_FLOATS(ShortHalves)
OPGRAFT_SIMD_FLOATS(Interleaved)
OPGRAFT_SIMD_FLOATS(InterleavedGrad)

namespace {

constexpr int64_t kGrain = 16384;  // elements: 2 to 4 µs of work, above the cost of a hand-over

double silu(double gate) { return gate / (1 + std::exp(-gate)); }
// SiLU'(gate); 0 and 1 at -inf and inf.
double slope(double gate) {
  const double g = gate < -800 ? -800 : gate > 800 ? 800 : gate, s = 1 / (1 + std::exp(-g));
  return s * (1 + g / (1 + std::exp(g)));
}
// v times what comes of the gate, in double. The logistic function of a gate below -127 ln2 is 0 to float32, and an
// infinite v times it NaN.
double times(double v, double gate, double of_gate) { return v * (std::isinf(v) && gate <= -88.0297 ? 0 : of_gate); }
double unit(double v, double gate) { return times(v, gate, silu(gate)); }

template <class Body> void for_type(Context &c, const Body &body) {
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), body);
}

// --- two tensors ---

void InferSeparate(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "gate", 0, "x");
  c.check_same_shape(1, "gate", 0, "x");
  c.output(c.input(0).dtype(), c.input(0).shape());
}
void InferSeparateGrad(InferContext &c) {
  InferSeparate(c);
  c.check_same_dtype(2, "dy", 0, "x");
  c.check_same_shape(2, "dy", 0, "x");
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void KernelSeparate(Context &c) {
  const bool past = goes_past_caches(c);
  const auto kernel = Separate_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>(), *g = c.input(1).data<char>();
  char *y = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.output(0).size(), kGrain,
                 [&](int64_t b, int64_t e) { kernel(x + b * size, g + b * size, y + b * size, e - b, past); });
}
void KernelSeparateGrad(Context &c) {
  const auto kernel = SeparateGrad_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>(), *g = c.input(1).data<char>(), *dy = c.input(2).data<char>();
  char *dx = c.output(0).data<char>(), *dg = c.output(1).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.output(0).size(), kGrain, [&](int64_t b, int64_t e) {
    kernel(x + b * size, g + b * size, dy + b * size, dx + b * size, dg + b * size, e - b);
  });
}

void ReferenceSeparate(Context &c) {
  for_type(c, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<T>()[i] = T(float(unit(float(c.input(0).data<T>()[i]), float(c.input(1).data<T>()[i]))));
  });
}
void ReferenceSeparateGrad(Context &c) {
  for_type(c, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < c.output(0).size(); ++i) {
      const double x = float(c.input(0).data<T>()[i]), g = float(c.input(1).data<T>()[i]),
                   dy = float(c.input(2).data<T>()[i]);
      c.output(0).data<T>()[i] = T(float(unit(dy, g)));
      c.output(1).data<T>()[i] = T(float(times(dy * x, g, slope(g))));
    }
  });
}

// --- x and gate in turn ---

void CheckInterleaved(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  auto dims = c.input(0).shape();
  c.check(!dims.empty(), "x must have at least 1 dimension, got shape ()");
  c.check(dims.back() < 0 || dims.back() % 2 == 0, "x's last dimension must be even, got ", dims.back());
}
// x's shape with half of dimension `axis`.
Shape halved(const InferContext &c, size_t axis) {
  Shape out(c.input(0).shape().begin(), c.input(0).shape().end());
  out[axis] = c.dim_op('/', out[axis], 2);
  return out;
}
// A gradient of one half of the input's shape.
void check_gradient(const InferContext &c, const char *name, const char *of, const Shape &want) {
  c.check_same_dtype(1, name, 0, of);
  c.check_shape(1, name, want);
}
void InferInterleaved(InferContext &c) {
  CheckInterleaved(c);
  c.output(c.input(0).dtype(), halved(c, c.input(0).shape().size() - 1));
}
void InferInterleavedGrad(InferContext &c) {
  CheckInterleaved(c);
  check_gradient(c, "dy", "x", halved(c, c.input(0).shape().size() - 1));
  c.output(c.input(0).dtype(), c.input(0).shape());
}

bool gate_is_first(const Context &c) { return c.attr_bool("gate_first", false); }

void KernelInterleaved(Context &c) {
  const bool gate_first = gate_is_first(c), past = goes_past_caches(c);
  const auto kernel = Interleaved_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.output(0).size(), kGrain,
                 [&](int64_t b, int64_t e) { kernel(x + 2 * b * size, y + b * size, e - b, gate_first, past); });
}
void KernelInterleavedGrad(Context &c) {
  const bool gate_first = gate_is_first(c);
  const auto kernel = InterleavedGrad_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>(), *dy = c.input(1).data<char>();
  char *dx = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(c.input(1).size(), kGrain, [&](int64_t b, int64_t e) {
    kernel(x + 2 * b * size, dy + b * size, dx + 2 * b * size, e - b, gate_first);
  });
}

void ReferenceInterleaved(Context &c) {
  const int64_t gate = gate_is_first(c) ? 0 : 1, up = 1 - gate;
  for_type(c, [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    for (int64_t i = 0; i < c.output(0).size(); ++i)
      c.output(0).data<T>()[i] = T(float(unit(float(x[2 * i + up]), float(x[2 * i + gate]))));
  });
}
void ReferenceInterleavedGrad(Context &c) {
  const int64_t gate = gate_is_first(c) ? 0 : 1, up = 1 - gate;
  for_type(c, [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    for (int64_t i = 0; i < c.input(1).size(); ++i) {
      const double v = float(x[2 * i + up]), g = float(x[2 * i + gate]), dy = float(c.input(1).data<T>()[i]);
      c.output(0).data<T>()[2 * i + up] = T(float(unit(dy, g)));
      c.output(0).data<T>()[2 * i + gate] = T(float(times(dy * v, g, slope(g))));
    }
  });
}

// --- halves of one dimension ---

// The input as rows of 2 * half elements, of which one half is the gate and the other x.
struct Halves {
  int64_t half = 1, rows = 0;
  bool gate_first = true;
  explicit Halves(const Context &c) : gate_first(c.attr_bool("gate_first", true)) {
    const TensorView t = c.input(0);
    for (int k = c.axis(c.attr_int("dim", -1), t.rank(), "dim"); k < t.rank(); ++k) half *= t.dim(k);
    half /= 2;
    rows = half ? t.size() / (2 * half) : 0;
  }
  // Calls body(place of x, place of gate, i, n) for pieces of elements [begin, end) of the halves' own order.
  template <class Body> void walk(int64_t begin, int64_t end, const Body &body) const {
    for (int64_t i = begin; i < end;) {
      const int64_t at = i % half, n = std::min(half - at, end - i), place = i / half * 2 * half + at;
      body(place + (gate_first ? half : 0), place + (gate_first ? 0 : half), i, n);
      i += n;
    }
  }
};

int CheckHalves(InferContext &c) {
  c.check_dtype(0, "input", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  auto dims = c.input(0).shape();
  c.check(!dims.empty(), "input must have at least 1 dimension, got shape ()");
  const int axis = c.axis(c.attr_int("dim", -1), int(dims.size()), "dim");
  const int64_t n = dims[size_t(axis)];
  c.check(n < 0 || n % 2 == 0, "input's dimension ", axis, " must be even, got ", n);
  return axis;
}
void InferHalves(InferContext &c) { c.output(c.input(0).dtype(), halved(c, size_t(CheckHalves(c)))); }
void InferHalvesGrad(InferContext &c) {
  check_gradient(c, "grad_output", "input", halved(c, size_t(CheckHalves(c))));
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void KernelHalves(Context &c) {
  const Halves h(c);
  if (h.half > 0 && h.half <= 32) {
    const auto kernel = ShortHalves_simd(c.input(0).dtype());
    c.parallel_for(h.rows, kGrain / std::max<int64_t>(h.half, 1), [&](int64_t b, int64_t e) {
      kernel(c.input(0).raw(), c.output(0).raw(), h.half, h.rows, b, e, h.gate_first);
    });
    return;
  }
  const bool past = h.half >= 1024 && goes_past_caches(c);  // not line by line
  const auto kernel = Separate_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(h.rows * h.half, kGrain, [&](int64_t b, int64_t e) {
    h.walk(b, e, [&](int64_t at, int64_t gate, int64_t i, int64_t n) {
      kernel(x + at * size, x + gate * size, y + i * size, n, past);
    });
  });
}
void KernelHalvesGrad(Context &c) {
  const Halves h(c);
  const auto kernel = SeparateGrad_simd(c.input(0).dtype());
  const char *x = c.input(0).data<char>(), *dy = c.input(1).data<char>();
  char *dx = c.output(0).data<char>();
  const int64_t size = int64_t(dtype_size(c.input(0).dtype()));
  c.parallel_for(h.rows * h.half, kGrain, [&](int64_t b, int64_t e) {
    h.walk(b, e, [&](int64_t at, int64_t gate, int64_t i, int64_t n) {
      kernel(x + at * size, x + gate * size, dy + i * size, dx + at * size, dx + gate * size, n);
    });
  });
}

void ReferenceHalves(Context &c) {
  const Halves h(c);
  for_type(c, [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    h.walk(0, h.rows * h.half, [&](int64_t at, int64_t gate, int64_t i, int64_t n) {
      for (int64_t k = 0; k < n; ++k)
        c.output(0).data<T>()[i + k] = T(float(unit(float(x[at + k]), float(x[gate + k]))));
    });
  });
}
void ReferenceHalvesGrad(Context &c) {
  const Halves h(c);
  for_type(c, [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    T *dx = c.output(0).data<T>();
    h.walk(0, h.rows * h.half, [&](int64_t at, int64_t gate, int64_t i, int64_t n) {
      for (int64_t k = 0; k < n; ++k) {
        const double g = float(x[gate + k]), dy = float(c.input(1).data<T>()[i + k]);
        dx[at + k] = T(float(unit(dy, g)));
        dx[gate + k] = T(float(times(dy * double(float(x[at + k])), g, slope(g))));
      }
    });
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_SWIGLU(Name, In, Out, Form)                                                                          \
  OPGRAFT_OP(Name, .inputs = In, .outputs = Out, .infer = ::opgraft::Infer##Form, .kernel = ::opgraft::Kernel##Form, \
             .reference = ::opgraft::Reference##Form)
OPGRAFT_SWIGLU(SwiGLU, 2, 1, Separate)
OPGRAFT_SWIGLU(SwiGLUGrad, 3, 2, SeparateGrad)
OPGRAFT_SWIGLU(SwiGLUInterleaved, 1, 1, Interleaved)
OPGRAFT_SWIGLU(SwiGLUInterleavedGrad, 2, 1, InterleavedGrad)
OPGRAFT_SWIGLU(Swiglu, 1, 1, Halves)
OPGRAFT_SWIGLU(SwigluGrad, 2, 1, HalvesGrad)
#endif
