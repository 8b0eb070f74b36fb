// Functions of one tensor, element by element. Half types compute in float32 and round once.
#include "opgraft/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "unary.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "hwy/contrib/math/math-inl.h"
#include "opgraft/simd.h"
#include "aot_ops/common/gelu-inl.h"
#include "aot_ops/common/stream-inl.h"
// clang-format on

#ifndef OPGRAFT_ELEMENTWISE_UNARY_ONCE
#define OPGRAFT_ELEMENTWISE_UNARY_ONCE
namespace opgraft {
enum UnaryOp {
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kErf,
  kErfc,
  kTanh,
  kSigmoid,
  kSiLU,
  kReLU,
  kNeg,
  kSquare,
  kGeLU,
  kGeLUErf,
  kReLU6,
  kRound,
  kAbs,
  kCos,
  kSin,
  kFastGeLU,
  kLog,
  kHSigmoid,
  kHSwish
};

// They wrap.
template <class T> T of_integer(UnaryOp op, T x) {
  using U = std::make_unsigned_t<T>;
  if (op == kSquare) return T(U(x) * U(x));
  if (op == kNeg || (op == kAbs && x < 0)) return T(U(0) - U(x));
  return op == kReLU && x < 0 ? T(0) : x;
}
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class D, class V> HWY_INLINE V ReLU6Of(D d, V x) {  // NaN stays NaN
  const V six = hn::Set(d, 6.0f), v = hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
  return hn::IfThenElse(hn::Gt(v, six), six, v);
}

// Highway's are good up to 39000; beyond, and of what is no number, lanes are the library's: what a lane becomes does
// not depend on its neighbours.
template <UnaryOp op, class D, class V> HWY_INLINE V Circular(D d, V x) {
  const auto near = hn::Le(hn::Abs(x), hn::Set(d, 30000.0f));
  const auto inside = hn::IfThenElseZero(near, x);
  const auto y = op == kCos ? hn::Cos(d, inside) : hn::Sin(d, inside);
  if (hn::AllTrue(d, near)) return y;
  HWY_ALIGN float from[hn::MaxLanes(d)], to[hn::MaxLanes(d)];
  hn::Store(x, d, from);
  for (size_t i = 0; i < hn::Lanes(d); ++i)
    to[i] = float(op == kCos ? std::cos(double(from[i])) : std::sin(double(from[i])));
  return hn::IfThenElse(near, y, hn::Load(d, to));
}

// Numerical Recipes' erfcc, relatively good in the tail, too: t exp(-z^2 + p(t)), t = 1 / (1 + z/2), z = |x|; 2 less
// that below zero. The square's exponential is a product of two, of which the first has no rounding in its argument.
template <class D, class V> HWY_INLINE V ErfcOf(D d, V x) {
  constexpr float kP[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                          -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
  const hn::RebindToUnsigned<D> du;
  const V z = hn::Min(hn::Abs(x), hn::Set(d, 11.0f));  // there it is 0 in float32
  const V t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(hn::Set(d, 0.5f), z, hn::Set(d, 1.0f)));
  V p = hn::Set(d, kP[0]);
  for (int i = 1; i < 10; ++i) p = hn::MulAdd(p, t, hn::Set(d, kP[i]));
  const V head = hn::BitCast(d, hn::And(hn::BitCast(du, z), hn::Set(du, 0xfffff000u)));
  const V rest = hn::NegMulAdd(hn::Sub(z, head), hn::Add(z, head), p);
  const V y = hn::Mul(t, hn::Mul(HWY_NAMESPACE::Exp(d, hn::Neg(hn::Mul(head, head))), HWY_NAMESPACE::Exp(d, rest)));
  const V both = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Sub(hn::Set(d, 2.0f), y), y);
  return hn::IfThenElse(hn::IsNaN(x), x, both);
}

// Highway's of what is above 0 and finite; of 0 -inf, below it NaN, and of inf and NaN these. NaN as arithmetic has it:
// of one whose bits are all ones RoundToUpper makes 0.
template <class D, class V> HWY_INLINE V LogOf(D d, V x) {
  const V zero = hn::Zero(d), inf = hn::Set(d, HUGE_VALF);
  const V beyond = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, NAN), x));
  return hn::IfThenElse(hn::And(hn::Gt(x, zero), hn::Lt(x, inf)), hn::Log(d, x), beyond);
}

template <UnaryOp op, class T, class D, class V> HWY_INLINE V Apply(D d, V x) {
  if constexpr (op == kSqrt) return hn::Sqrt(x);
  if constexpr (op == kRsqrt) return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(x));
  if constexpr (op == kReciprocal) return hn::Div(hn::Set(d, 1.0f), x);
  if constexpr (op == kExp) return HWY_NAMESPACE::Exp(d, x);  // Highway has one, too
  if constexpr (op == kLog) return LogOf(d, x);
  if constexpr (op == kErf) return Erf(d, x);
  if constexpr (op == kErfc) return ErfcOf(d, x);
  if constexpr (op == kFastGeLU) return hn::Mul(x, Sigmoid<T>(d, hn::Mul(hn::Set(d, 1.702f), x)));
  if constexpr (op == kTanh) return HWY_NAMESPACE::Tanh(d, x);
  if constexpr (op == kSigmoid) return Sigmoid<T>(d, x);
  if constexpr (op == kSiLU) return Silu<T>(d, x);
  if constexpr (op == kReLU) return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
  if constexpr (op == kReLU6) return ReLU6Of(d, x);
  // The factor is at most 1: what float32 holds stays finite.
  if constexpr (op == kHSigmoid || op == kHSwish) {
    const V gate = hn::Mul(ReLU6Of(d, hn::Add(x, hn::Set(d, 3.0f))), hn::Set(d, 1.0f / 6.0f));
    return op == kHSwish ? hn::Mul(x, gate) : gate;
  }
  if constexpr (op == kRound) return hn::Round(x);  // halves to even
  if constexpr (op == kNeg) return hn::Neg(x);
  if constexpr (op == kAbs) return hn::Abs(x);
  if constexpr (op == kCos || op == kSin) return Circular<op>(d, x);
  if constexpr (op == kSquare) return hn::Mul(x, x);
  if constexpr (op == kGeLU) return GeluTanh<T>(d, x);
  if constexpr (op == kGeLUErf) return GeluErf(d, x);
}

template <UnaryOp op, class T> void Loop(const T *x, T *y, int64_t n, bool past) {
  if constexpr (std::is_integral_v<T>) {
    for (int64_t i = 0; i < n; ++i) y[i] = of_integer(op, x[i]);
  } else {
    MapPast(
        past, [](auto d, auto v) HWY_ATTR { return Apply<op, T>(d, v); }, y, n, x);
  }
}

template <class T> void UnaryOf(int op, const void *vx, void *vy, int64_t n, bool past) {
  const T *x = static_cast<const T *>(vx);
  T *y = static_cast<T *>(vy);
  switch (op) {
    case kReLU: return Loop<kReLU>(x, y, n, past);
    case kNeg: return Loop<kNeg>(x, y, n, past);
    case kSquare: return Loop<kSquare>(x, y, n, past);
    case kAbs: return Loop<kAbs>(x, y, n, past);
  }
  if constexpr (!std::is_integral_v<T>) switch (op) {
      case kSqrt: return Loop<kSqrt>(x, y, n, past);
      case kRsqrt: return Loop<kRsqrt>(x, y, n, past);
      case kReciprocal: return Loop<kReciprocal>(x, y, n, past);
      case kExp: return Loop<kExp>(x, y, n, past);
      case kLog: return Loop<kLog>(x, y, n, past);
      case kErf: return Loop<kErf>(x, y, n, past);
      case kErfc: return Loop<kErfc>(x, y, n, past);
      case kFastGeLU: return Loop<kFastGeLU>(x, y, n, past);
      case kTanh: return Loop<kTanh>(x, y, n, past);
      case kSigmoid: return Loop<kSigmoid>(x, y, n, past);
      case kSiLU: return Loop<kSiLU>(x, y, n, past);
      case kGeLU: return Loop<kGeLU>(x, y, n, past);
      case kGeLUErf: return Loop<kGeLUErf>(x, y, n, past);
      case kReLU6: return Loop<kReLU6>(x, y, n, past);
      case kHSigmoid: return Loop<kHSigmoid>(x, y, n, past);
      case kHSwish: return Loop<kHSwish>(x, y, n, past);
      case kRound: return Loop<kRound>(x, y, n, past);
      case kCos: return Loop<kCos>(x, y, n, past);
      case kSin: return Loop<kSin>(x, y, n, past);
    }
}

void UnaryRow(int op, int dtype, const void *x, void *y, int64_t n, bool past) {
  switch (dtype) {
    case OPGRAFT_FLOAT32: return UnaryOf<float>(op, x, y, n, past);
    case OPGRAFT_FLOAT16: return UnaryOf<float16>(op, x, y, n, past);
    case OPGRAFT_BFLOAT16: return UnaryOf<bfloat16>(op, x, y, n, past);
    case OPGRAFT_INT32: return UnaryOf<int32_t>(op, x, y, n, past);
    default: return UnaryOf<int64_t>(op, x, y, n, past);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD(UnaryRow)

namespace {

constexpr bool takes_integers(UnaryOp op) { return op == kReLU || op == kNeg || op == kSquare || op == kAbs; }
constexpr int64_t grain(UnaryOp op) {
  const bool cheap = op == kSqrt || op == kRsqrt || op == kReciprocal || op == kReLU6 || op == kRound ||
                     op == kHSigmoid || op == kHSwish;
  return takes_integers(op) || cheap ? 16384 : 8192;
}

// GeLU's attribute `approximate` chooses between the two formulas; Round knows whole numbers only.
UnaryOp chosen(const Arguments &a, UnaryOp op) {
  if (op == kRound) {
    const int64_t decimals = a.attr_int("decimals", 0);
    a.check(decimals == 0, "decimals must be 0, got ", decimals);
  }
  if (op != kGeLU) return op;
  const std::string form = a.attr_string("approximate", "tanh");
  a.check(form == "tanh" || form == "none", "approximate must be 'tanh' or 'none', got '", form, "'");
  return form == "none" ? kGeLUErf : kGeLU;
}

template <UnaryOp op> void InferUnary(InferContext &c) {
  if constexpr (takes_integers(op))
    c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64});
  else c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  chosen(c, op);
  c.output(c.input(0).dtype(), c.input(0).shape());
}

template <UnaryOp op> void KernelUnary(Context &c) {
  const TensorView x = c.input(0), y = c.output(0);
  const int64_t size = int64_t(dtype_size(x.dtype()));
  const int form = chosen(c, op), dtype = x.dtype();
  auto row = UnaryRow_simd();
  const bool past = goes_past_caches(c);
  c.parallel_for(y.size(), grain(op), [&](int64_t begin, int64_t end) {
    row(form, dtype, x.data<char>() + begin * size, y.data<char>() + begin * size, end - begin, past);
  });
}

double formula(UnaryOp op, double x) {
  switch (op) {
    case kSqrt: return std::sqrt(x);
    case kRsqrt: return 1 / std::sqrt(x);
    case kReciprocal: return 1 / x;
    case kExp: return std::exp(x);
    case kLog: return std::log(x);
    case kErf: return std::erf(x);
    case kErfc: return std::erfc(x);
    case kFastGeLU: return x / (1 + std::exp(-1.702 * x));
    case kTanh: return std::tanh(x);
    case kSigmoid: return 1 / (1 + std::exp(-x));
    case kSiLU: return x / (1 + std::exp(-x));
    case kReLU: return x < 0 ? 0 : x;
    case kReLU6: return x < 0 ? 0 : x > 6 ? 6 : x;
    case kHSigmoid: return formula(kReLU6, x + 3) / 6;
    case kHSwish: return x * formula(kReLU6, x + 3) / 6;
    case kRound: return std::nearbyint(x);
    case kNeg: return -x;
    case kAbs: return std::fabs(x);
    case kCos: return std::cos(x);
    case kSin: return std::sin(x);
    case kSquare: return x * x;
    case kGeLU: return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case kGeLUErf: return 0.5 * x * (1 + std::erf(x * 0.70710678118654752));
  }
  return x;
}

template <UnaryOp op> void ReferenceUnary(Context &c) {
  const UnaryOp form = chosen(c, op);
  dispatch<float, float16, bfloat16, int32_t, int64_t>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    T *y = c.output(0).data<T>();
    for (int64_t i = 0; i < c.output(0).size(); ++i) {
      if constexpr (std::is_integral_v<T>) {
        y[i] = of_integer(form, x[i]);
      } else {
        y[i] = T(float(formula(form, float(x[i]))));
      }
    }
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_UNARY(Name)                                                         \
  OPGRAFT_OP(Name, .inputs = 1, .infer = ::opgraft::InferUnary<::opgraft::k##Name>, \
             .kernel = ::opgraft::KernelUnary<::opgraft::k##Name>,                  \
             .reference = ::opgraft::ReferenceUnary<::opgraft::k##Name>)
OPGRAFT_UNARY(Sqrt)
OPGRAFT_UNARY(Rsqrt)
OPGRAFT_UNARY(Reciprocal)
OPGRAFT_UNARY(Exp)
OPGRAFT_UNARY(Log)
OPGRAFT_UNARY(Erf)
OPGRAFT_UNARY(Erfc)
OPGRAFT_UNARY(FastGeLU)
OPGRAFT_UNARY(Tanh)
OPGRAFT_UNARY(Sigmoid)
OPGRAFT_UNARY(SiLU)
OPGRAFT_UNARY(ReLU)
OPGRAFT_UNARY(ReLU6)
OPGRAFT_UNARY(HSigmoid)
OPGRAFT_UNARY(HSwish)
OPGRAFT_UNARY(Round)
OPGRAFT_UNARY(Neg)
OPGRAFT_UNARY(Square)
OPGRAFT_UNARY(GeLU)
OPGRAFT_UNARY(Abs)
OPGRAFT_UNARY(Cos)
OPGRAFT_UNARY(Sin)
#endif
