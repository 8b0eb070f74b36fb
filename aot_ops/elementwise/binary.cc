// Add, Sub, Mul, Div, Maximum, Minimum, Pow, the comparisons and LogicalAnd, LogicalOr, with NumPy's
// broadcasting. After merging dimensions a row of the output meets, in each operand, a row or a
// single element; these four cases are the vector loops. Half types compute in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "aot_ops/common/strided.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "binary.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/pow-inl.h"
#include "aot_ops/common/stream-inl.h"
// clang-format on

#ifndef OPGRAFT_ELEMENTWISE_BINARY_ONCE
#define OPGRAFT_ELEMENTWISE_BINARY_ONCE
namespace opgraft {
enum BinaryOp {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kPow,
  kLess,  // from here on the result is bool
  kEqual,
  kGreater,
  kNotEqual,
  kLessEqual,
  kGreaterEqual,
  kLogicalAnd,  // and the operands
  kLogicalOr
};
}
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The operations on vectors; `whole` on integers, which wrap.
struct AddOf {
  template <class V> HWY_INLINE V operator()(V a, V b) const { return hn::Add(a, b); }
  template <class T> static T whole(T a, T b) { return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b)); }
};
struct SubOf {
  template <class V> HWY_INLINE V operator()(V a, V b) const { return hn::Sub(a, b); }
  template <class T> static T whole(T a, T b) { return T(std::make_unsigned_t<T>(a) - std::make_unsigned_t<T>(b)); }
};
struct MulOf {
  template <class V> HWY_INLINE V operator()(V a, V b) const { return hn::Mul(a, b); }
  template <class T> static T whole(T a, T b) { return T(std::make_unsigned_t<T>(a) * std::make_unsigned_t<T>(b)); }
};
struct DivOf {
  template <class V> HWY_INLINE V operator()(V a, V b) const { return hn::Div(a, b); }
};
struct MaximumOf {  // a NaN wins
  template <class V> HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Gt(a, b), a, b));
  }
  template <class T> static T whole(T a, T b) { return a > b ? a : b; }
};
struct MinimumOf {
  template <class V> HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Lt(a, b), a, b));
  }
  template <class T> static T whole(T a, T b) { return a < b ? a : b; }
};
struct PowOf {
  template <class V> HWY_INLINE V operator()(V a, V b) const { return Pow(hn::DFromV<V>(), a, b); }
};

// An operand along a row: its elements, or one element held in a vector.
template <class T> struct Elements {
  const T *p;
  template <class D> HWY_INLINE hn::Vec<D> at(D d, int64_t i) const { return LoadF32(d, p + i); }
  template <class D> HWY_INLINE hn::Vec<D> at(D d, int64_t i, size_t n) const { return LoadF32N(d, p + i, n); }
};
struct Single {
  float value;
  template <class D> HWY_INLINE hn::Vec<D> at(D d, int64_t) const { return hn::Set(d, value); }
  template <class D> HWY_INLINE hn::Vec<D> at(D d, int64_t, size_t) const { return hn::Set(d, value); }
};

template <class Op, class A, class B, class T> HWY_INLINE void Loop(Op op, A a, B b, T *y, int64_t n, bool past) {
  const hn::ScalableTag<float> d;
  if constexpr (std::is_same_v<T, float>) {
    if (past)
      return StreamAll(
          d, y, n, [&](int64_t i) HWY_ATTR { return op(a.at(d, i), b.at(d, i)); },
          [&](int64_t i, size_t k) HWY_ATTR { return op(a.at(d, i, k), b.at(d, i, k)); });
  }
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(op(a.at(d, i), b.at(d, i)), d, y + i);
  if (size_t rest = size_t(n - i)) StoreF32N(op(a.at(d, i, rest), b.at(d, i, rest)), d, y + i, rest);
}

template <class Op, class T>
void Row(Op op, const T *a, int64_t sa, const T *b, int64_t sb, T *y, int64_t n, bool past) {
  if constexpr (std::is_integral_v<T>) {
    if (sa && sb)
      for (int64_t i = 0; i < n; ++i) y[i] = Op::whole(a[i], b[i]);
    else
      for (int64_t i = 0; i < n; ++i) y[i] = Op::whole(a[i * sa], b[i * sb]);
  } else {
    if (sa && sb) Loop(op, Elements<T>{a}, Elements<T>{b}, y, n, past);
    else if (sa) Loop(op, Elements<T>{a}, Single{float(*b)}, y, n, past);
    else if (sb) Loop(op, Single{float(*a)}, Elements<T>{b}, y, n, past);
    else Loop(op, Single{float(*a)}, Single{float(*b)}, y, n, past);
  }
}

template <class T> void PowRow(const T *a, int64_t sa, const T *b, int64_t sb, T *y, int64_t n, bool past) {
  if (sb == 0 && float(*b) == 2.0f) return Row(MulOf(), a, sa, a, sa, y, n, past);  // as norms spell a square
  Row(PowOf(), a, sa, b, sb, y, n, past);
}

template <class T> using Compared = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

template <class Op, class T>
void CompareRow(Op op, const T *a, int64_t sa, const T *b, int64_t sb, bool *y, int64_t n) {
  const auto at = [](const T *p, int64_t i) {
    // Another library's true may be any byte but 0.
    if constexpr (std::is_same_v<T, bool>) return reinterpret_cast<const uint8_t *>(p)[i] != 0;
    else return Compared<T>(p[i]);
  };
  if (sa && sb)
    for (int64_t i = 0; i < n; ++i) y[i] = op(at(a, i), at(b, i));
  else if (sa)
    for (int64_t i = 0; i < n; ++i) y[i] = op(at(a, i), at(b, 0));
  else
    for (int64_t i = 0; i < n; ++i) y[i] = op(at(a, 0), at(b, i * sb));
}

template <class T>
void RowOf(int op, const void *va, int64_t sa, const void *vb, int64_t sb, void *vy, int64_t n, bool past) {
  const T *a = static_cast<const T *>(va), *b = static_cast<const T *>(vb);
  T *y = static_cast<T *>(vy);
  bool *truth = static_cast<bool *>(vy);
  switch (op) {
    case kEqual: return CompareRow([](auto p, auto q) { return p == q; }, a, sa, b, sb, truth, n);
    case kLess: return CompareRow([](auto p, auto q) { return p < q; }, a, sa, b, sb, truth, n);
    case kGreater: return CompareRow([](auto p, auto q) { return p > q; }, a, sa, b, sb, truth, n);
    case kNotEqual: return CompareRow([](auto p, auto q) { return p != q; }, a, sa, b, sb, truth, n);
    case kLessEqual: return CompareRow([](auto p, auto q) { return p <= q; }, a, sa, b, sb, truth, n);
    case kGreaterEqual: return CompareRow([](auto p, auto q) { return p >= q; }, a, sa, b, sb, truth, n);
  }
  // Without branches, as & and | are, the loops are vectorised.
  if constexpr (std::is_same_v<T, bool>) switch (op) {
      case kLogicalAnd: return CompareRow([](bool p, bool q) { return bool(p & q); }, a, sa, b, sb, truth, n);
      case kLogicalOr: return CompareRow([](bool p, bool q) { return bool(p | q); }, a, sa, b, sb, truth, n);
    }
  else switch (op) {
      case kAdd: return Row(AddOf(), a, sa, b, sb, y, n, past);
      case kSub: return Row(SubOf(), a, sa, b, sb, y, n, past);
      case kMul: return Row(MulOf(), a, sa, b, sb, y, n, past);
      case kMaximum: return Row(MaximumOf(), a, sa, b, sb, y, n, past);
      case kMinimum: return Row(MinimumOf(), a, sa, b, sb, y, n, past);
    }
  if constexpr (!std::is_integral_v<T>) switch (op) {
      case kDiv: return Row(DivOf(), a, sa, b, sb, y, n, past);
      case kPow: return PowRow(a, sa, b, sb, y, n, past);
    }
}

// One row of the output; a step of 0 means that the operand is a single element. past: see streams.h.
void BinaryRow(int op, int dtype, const void *a, int64_t sa, const void *b, int64_t sb, void *y, int64_t n, bool past) {
  switch (dtype) {
    case OPGRAFT_FLOAT32: return RowOf<float>(op, a, sa, b, sb, y, n, past);
    case OPGRAFT_FLOAT16: return RowOf<float16>(op, a, sa, b, sb, y, n, past);
    case OPGRAFT_BFLOAT16: return RowOf<bfloat16>(op, a, sa, b, sb, y, n, past);
    case OPGRAFT_INT32: return RowOf<int32_t>(op, a, sa, b, sb, y, n, past);
    case OPGRAFT_INT64: return RowOf<int64_t>(op, a, sa, b, sb, y, n, past);
    default: return RowOf<bool>(op, a, sa, b, sb, y, n, past);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD(BinaryRow)

namespace {

constexpr bool on_bools(BinaryOp op) { return op >= kLogicalAnd; }
constexpr bool of_equality(BinaryOp op) { return op == kEqual || op == kNotEqual; }

template <BinaryOp op> void InferBinary(InferContext &c) {
  if constexpr (op == kDiv || op == kPow) c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  else if constexpr (on_bools(op)) c.check_dtype(0, "x", {OPGRAFT_BOOL});
  else if constexpr (of_equality(op))
    c.check_dtype(0, "x",
                  {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64, OPGRAFT_BOOL});
  else c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64});
  c.check_same_dtype(1, "y", 0, "x");
  c.output(op >= kLess ? int32_t(OPGRAFT_BOOL) : c.input(0).dtype(),
           c.broadcast(c.input(0).shape(), c.input(1).shape()));
}

constexpr int64_t kShort = 32, kBlock = 1024;

// Elements [begin, end) of the output's order, from operand k of the walk.
template <class U> void gather(const Strided<2> &rows, int k, const void *from, int64_t begin, int64_t end, void *to) {
  const U *x = static_cast<const U *>(from);
  U *y = static_cast<U *>(to);
  rows.walk(begin, end, [&](const int64_t(&at)[2], int64_t out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[out - begin + i] = x[at[k] + i * rows.step[k]];
  });
}

// Rows of a few elements are too short for vectors and for a call each: what does not run along with the
// output is first laid out as the output is, a block at a time. A block is whole rows, so that an operand
// that is the same for each row is laid out once.
void short_rows(Context &c, int op, const Strided<2> &rows) {
  const TensorView y = c.output(0);
  const int dtype = c.input(0).dtype();
  const int64_t in = int64_t(dtype_size(dtype)), out = int64_t(dtype_size(y.dtype())),
                block = kBlock / rows.row * rows.row;
  const auto lay = in == 1   ? gather<uint8_t>
                   : in == 2 ? gather<uint16_t>
                   : in == 4 ? gather<uint32_t>
                             : gather<uint64_t>;
  const auto row = BinaryRow_simd();
  c.parallel_for(y.size(), 8192, [&](int64_t begin, int64_t end) {
    alignas(64) char laid[2][kBlock * 8];
    for (int64_t i = begin; i < end; i += block) {
      const int64_t n = std::min(block, end - i);
      const char *x[2];
      for (int k = 0; k < 2; ++k) {
        const TensorView t = c.input(k);
        x[k] = t.size() == y.size() ? t.data<char>() + i * in : laid[k];
        const bool repeats = std::all_of(rows.stride[k], rows.stride[k] + rows.dims, [](int64_t s) { return s == 0; });
        if (x[k] == laid[k] && (i == begin || !repeats)) lay(rows, k, t.raw(), i, i + n, laid[k]);
      }
      row(op, dtype, x[0], 1, x[1], 1, y.data<char>() + i * out, n, false);
    }
  });
}

template <BinaryOp op> void KernelBinary(Context &c) {
  const TensorView a = c.input(0), b = c.input(1), y = c.output(0);
  const auto rows = broadcast_rows<2>(y.shape(), {a.shape(), b.shape()});
  const int64_t in_size = int64_t(dtype_size(a.dtype())), out_size = int64_t(dtype_size(y.dtype()));
  if (rows.row < kShort && rows.dims > 0 && rows.total >= 4 * kShort) return short_rows(c, op, rows);
  auto row = BinaryRow_simd();
  const int dtype = a.dtype();
  const bool past = rows.row >= kBlock && goes_past_caches(c);
  c.parallel_for(y.size(), op == kPow ? 1024 : 8192, [&](int64_t begin, int64_t end) {
    rows.walk(begin, end, [&](const int64_t(&at)[2], int64_t out, int64_t n) {
      row(op, dtype, a.data<char>() + at[0] * in_size, rows.step[0], b.data<char>() + at[1] * in_size, rows.step[1],
          y.data<char>() + out * out_size, n, past);
    });
  });
}

template <BinaryOp op, class T> auto formula(T a, T b) {
  using U = std::conditional_t<std::is_same_v<T, int32_t>, uint32_t,
                               std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>>;
  if constexpr (op == kAdd) return T(U(a) + U(b));
  if constexpr (op == kSub) return T(U(a) - U(b));
  if constexpr (op == kMul) return T(U(a) * U(b));
  if constexpr (op == kDiv) return T(a / b);
  if constexpr (op == kPow) return T(std::pow(a, b));
  if constexpr (op == kMaximum) return a != a || a > b ? a : b;
  if constexpr (op == kMinimum) return a != a || a < b ? a : b;
  if constexpr (op == kLess) return a < b;
  if constexpr (op == kEqual) return a == b;
  if constexpr (op == kGreater) return a > b;
  if constexpr (op == kNotEqual) return a != b;
  if constexpr (op == kLessEqual) return a <= b;
  if constexpr (op == kGreaterEqual) return a >= b;
  if constexpr (op == kLogicalAnd) return a && b;
  if constexpr (op == kLogicalOr) return a || b;
}

template <BinaryOp op, class... Ts> void reference_of(Context &c) {
  const TensorView a = c.input(0), b = c.input(1), y = c.output(0);
  const auto rows = broadcast_rows<2>(y.shape(), {a.shape(), b.shape()});
  dispatch<Ts...>(c, a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = std::conditional_t<std::is_arithmetic_v<T>, T, float>;
    using R = std::conditional_t<(op >= kLess), bool, T>;
    rows.walk(0, y.size(), [&](const int64_t(&at)[2], int64_t out, int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        y.data<R>()[out + i] =
            R(formula<op, C>(C(a.data<T>()[at[0] + i * rows.step[0]]), C(b.data<T>()[at[1] + i * rows.step[1]])));
    });
  });
}
template <BinaryOp op> void ReferenceBinary(Context &c) {
  if constexpr (op == kDiv || op == kPow) reference_of<op, float, float16, bfloat16>(c);
  else if constexpr (on_bools(op)) reference_of<op, bool>(c);
  else if constexpr (of_equality(op)) reference_of<op, float, float16, bfloat16, int32_t, int64_t, bool>(c);
  else reference_of<op, float, float16, bfloat16, int32_t, int64_t>(c);
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_BINARY(Name)                                                         \
  OPGRAFT_OP(Name, .inputs = 2, .infer = ::opgraft::InferBinary<::opgraft::k##Name>, \
             .kernel = ::opgraft::KernelBinary<::opgraft::k##Name>,                  \
             .reference = ::opgraft::ReferenceBinary<::opgraft::k##Name>)
OPGRAFT_BINARY(Add)
OPGRAFT_BINARY(Sub)
OPGRAFT_BINARY(Mul)
OPGRAFT_BINARY(Div)
OPGRAFT_BINARY(Maximum)
OPGRAFT_BINARY(Minimum)
OPGRAFT_BINARY(Pow)
OPGRAFT_BINARY(Less)
OPGRAFT_BINARY(Equal)
OPGRAFT_BINARY(Greater)
OPGRAFT_BINARY(NotEqual)
OPGRAFT_BINARY(LessEqual)
OPGRAFT_BINARY(GreaterEqual)
OPGRAFT_BINARY(LogicalAnd)
OPGRAFT_BINARY(LogicalOr)
#endif
