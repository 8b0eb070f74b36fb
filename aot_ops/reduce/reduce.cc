// ReduceMean, ReduceSum, ReduceMax and ReduceMin over any set of axes. Neighbouring kept and neighbouring
// reduced dimensions merge, so that a row is contiguous in either: a reduced row folds to a number,
// a kept row folds into a row of accumulators. Half types accumulate in float32.
#include "opgraft/op.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "aot_ops/reduce/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

#ifndef OPGRAFT_REDUCE_ONCE
#define OPGRAFT_REDUCE_ONCE
namespace opgraft {
template <class T> using Accumulator = std::conditional_t<std::is_integral_v<T>, T, float>;
// What a fold begins with.
template <ReduceOp op, class A> constexpr A start_of() {
  using Limits = std::numeric_limits<A>;
  if (op == kMax) return std::is_integral_v<A> ? Limits::min() : -Limits::infinity();
  if (op == kMin) return std::is_integral_v<A> ? Limits::max() : Limits::infinity();
  return A(0);
}
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

struct SumOf {
  static constexpr ReduceOp kOp = kSum;
  template <class V> HWY_INLINE V operator()(V a, V b) const { return hn::Add(a, b); }
};
struct MaxOf {  // a NaN wins
  static constexpr ReduceOp kOp = kMax;
  template <class V> HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Gt(a, b), a, b));
  }
};
struct MinOf {  // as well
  static constexpr ReduceOp kOp = kMin;
  template <class V> HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Lt(a, b), a, b));
  }
};

// The lanes of v folded by halves.
template <class Op, class D> HWY_INLINE float Across(Op op, D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return Across(op, half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Folds n elements into one number; four accumulators hide the latency of an addition.
template <class Op, class T> HWY_INLINE float Fold(Op op, float start, const T *x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto none = hn::Set(d, start);
  if (n < lanes) return Across(op, d, hn::IfThenElse(hn::FirstN(d, size_t(n)), LoadF32N(d, x, size_t(n)), none));
  auto a0 = none, a1 = a0, a2 = a0, a3 = a0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a0 = op(a0, LoadF32(d, x + i));
    a1 = op(a1, LoadF32(d, x + i + lanes));
    a2 = op(a2, LoadF32(d, x + i + 2 * lanes));
    a3 = op(a3, LoadF32(d, x + i + 3 * lanes));
  }
  if (i + 2 * lanes <= n) {
    a0 = op(a0, LoadF32(d, x + i)), a1 = op(a1, LoadF32(d, x + i + lanes));
    i += 2 * lanes;
  }
  if (i + lanes <= n) a2 = op(a2, LoadF32(d, x + i)), i += lanes;
  if (i < n)  // the row's last vector, without what is folded already
    a3 = op(a3, hn::IfThenElse(hn::FirstN(d, size_t(i + lanes - n)), none, LoadF32(d, x + n - lanes)));
  return Across(op, d, op(op(a0, a1), op(a2, a3)));
}

// acc[i] = op(acc[i], x[i]) for `rows` rows of x, one after another; four at a time read and write acc once.
template <class Op, class T> void Into(Op op, const T *x, int64_t stride, int64_t rows, float *acc, int64_t n) {
  for (; rows >= 4; rows -= 4, x += 4 * stride)
    Map([&](auto, auto a, auto p, auto q, auto r, auto s) HWY_ATTR { return op(op(op(op(a, p), q), r), s); }, acc, n,
        acc, x, x + stride, x + 2 * stride, x + 3 * stride);
  for (; rows > 0; --rows, x += stride) Map([&](auto, auto a, auto p) HWY_ATTR { return op(a, p); }, acc, n, acc, x);
}

// The same on integers, which wrap: plain loops that the compiler vectorises for the target.
template <class T> T FoldWhole(SumOf, T start, const T *x, int64_t n) {
  std::make_unsigned_t<T> sum = std::make_unsigned_t<T>(start);
  for (int64_t i = 0; i < n; ++i) sum += std::make_unsigned_t<T>(x[i]);
  return T(sum);
}
template <class T> T FoldWhole(MaxOf, T start, const T *x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) start = start > x[i] ? start : x[i];
  return start;
}
template <class T> T FoldWhole(MinOf, T start, const T *x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) start = start < x[i] ? start : x[i];
  return start;
}
struct WholeSum {
  template <class T> T operator()(T a, T b) const { return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b)); }
};
struct WholeMax {
  template <class T> T operator()(T a, T b) const { return a > b ? a : b; }
};
struct WholeMin {
  template <class T> T operator()(T a, T b) const { return a < b ? a : b; }
};
template <class Op, class T> void IntoWhole(Op op, const T *x, int64_t stride, int64_t rows, T *acc, int64_t n) {
  for (; rows >= 4; rows -= 4, x += 4 * stride)
    for (int64_t i = 0; i < n; ++i)
      acc[i] = op(op(acc[i], x[i]), op(op(x[i + stride], x[i + 2 * stride]), x[i + 3 * stride]));
  for (; rows > 0; --rows, x += stride)
    for (int64_t i = 0; i < n; ++i) acc[i] = op(acc[i], x[i]);
}

template <class Op, class T>
void FoldOf(Op op, const T *x, int64_t stride, int64_t rows, int64_t n, Accumulator<T> *to) {
  using A = Accumulator<T>;
  constexpr A start = start_of<Op::kOp, A>();
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    if constexpr (std::is_integral_v<T>) to[r] = FoldWhole(op, start, x, n);
    else to[r] = Fold(op, start, x, n);
  }
}
template <class T> void FoldOf(int op, const void *from, int64_t stride, int64_t rows, int64_t n, void *to) {
  const T *x = static_cast<const T *>(from);
  auto *result = static_cast<Accumulator<T> *>(to);
  if (op == kMax) FoldOf(MaxOf(), x, stride, rows, n, result);
  else if (op == kMin) FoldOf(MinOf(), x, stride, rows, n, result);
  else FoldOf(SumOf(), x, stride, rows, n, result);
}
template <class T> void IntoOf(int op, const void *from, int64_t stride, int64_t rows, void *to, int64_t n) {
  const T *x = static_cast<const T *>(from);
  auto *acc = static_cast<Accumulator<T> *>(to);
  if constexpr (std::is_integral_v<T>) {
    if (op == kMax) IntoWhole(WholeMax(), x, stride, rows, acc, n);
    else if (op == kMin) IntoWhole(WholeMin(), x, stride, rows, acc, n);
    else IntoWhole(WholeSum(), x, stride, rows, acc, n);
  } else {
    if (op == kMax) Into(MaxOf(), x, stride, rows, acc, n);
    else if (op == kMin) Into(MinOf(), x, stride, rows, acc, n);
    else Into(SumOf(), x, stride, rows, acc, n);
  }
}
// Folds each of `rows` rows of n elements, `stride` apart, into one accumulator; or all of them into n accumulators.
void FoldRows(int dtype, int op, const void *x, int64_t stride, int64_t rows, int64_t n, void *to) {
  switch (dtype) {
    case OPGRAFT_FLOAT32: return FoldOf<float>(op, x, stride, rows, n, to);
    case OPGRAFT_FLOAT16: return FoldOf<float16>(op, x, stride, rows, n, to);
    case OPGRAFT_BFLOAT16: return FoldOf<bfloat16>(op, x, stride, rows, n, to);
    case OPGRAFT_INT32: return FoldOf<int32_t>(op, x, stride, rows, n, to);
    default: return FoldOf<int64_t>(op, x, stride, rows, n, to);
  }
}
void IntoRow(int dtype, int op, const void *x, int64_t stride, int64_t rows, void *acc, int64_t n) {
  switch (dtype) {
    case OPGRAFT_FLOAT32: return IntoOf<float>(op, x, stride, rows, acc, n);
    case OPGRAFT_FLOAT16: return IntoOf<float16>(op, x, stride, rows, acc, n);
    case OPGRAFT_BFLOAT16: return IntoOf<bfloat16>(op, x, stride, rows, acc, n);
    case OPGRAFT_INT32: return IntoOf<int32_t>(op, x, stride, rows, acc, n);
    default: return IntoOf<int64_t>(op, x, stride, rows, acc, n);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(FoldRows)
OPGRAFT_SIMD(IntoRow)

namespace {

template <ReduceOp op> void InferReduce(InferContext &c) {
  if constexpr (op == kMean) c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  else c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64});
  infer_shape<op>(c, c.input(0).dtype());
}

// What one output element is folded in: float32 within a part of a row, double between parts.
template <ReduceOp op, class T> struct Total {
  using A = Accumulator<T>;
  using Sum = std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<double>>::type;
  Sum sum = 0;
  A most = start_of<op, A>();
  void add(A part) {
    if constexpr (op == kMax) most = most != most || part <= most ? most : part;  // a NaN stays
    else if constexpr (op == kMin) most = most != most || part >= most ? most : part;
    else sum += Sum(part);
  }
  void add(const Total &t) {
    if constexpr (op == kMax || op == kMin) add(t.most);
    else sum += t.sum;
  }
  T value(int64_t count) const {
    if constexpr (op == kMax || op == kMin) return T(most);
    else if constexpr (op == kMean) return T(float(double(sum) / double(count)));
    else if constexpr (std::is_integral_v<T>) return T(sum);
    else return T(float(sum));
  }
};

// The last dimension is kept: rows are added to rows of accumulators. Few outputs of many rows each are cut
// into parts of the rows, which depend on the shape alone, as in reduce_rows.
template <ReduceOp op, class T> void reduce_into_rows(Context &c, const Walks &w) {
  using A = Accumulator<T>;
  const T *x = c.input(0).data<T>();
  T *y = c.output(0).data<T>();
  const int dtype = c.input(0).dtype();
  const int64_t count = w.reduced.total;
  auto into = IntoRow_simd();
  constexpr A start = start_of<op, A>();
  constexpr int64_t kBlock = 1024, kNarrow = 128, kParts = 16, kLeastPart = 32768, kRows = 4096;
  // Rows [begin, end) into m totals: parts of kRows in float32, which add up in double.
  auto add = [&](int64_t at, int64_t begin, int64_t end, Total<op, T> *totals, int64_t m) {
    A acc[kBlock];
    for (int64_t b = begin; b < end; b += kRows) {
      std::fill_n(acc, m, start);
      w.reduced.walk(b, std::min(end, b + kRows), [&](const int64_t(&from)[1], int64_t, int64_t rows) {
        into(dtype, op, x + at + from[0], w.reduced.step[0], rows, acc, m);
      });
      for (int64_t i = 0; i < m; ++i) totals[i].add(acc[i]);
    }
  };
  auto store = [&](const Total<op, T> *totals, int64_t out, int64_t m) {
    for (int64_t i = 0; i < m; ++i) y[out + i] = totals[i].value(count);
  };
  const int64_t n = w.kept.total;
  if (n <= kNarrow && w.kept.dims == 0 && n * count >= 2 * kLeastPart) {
    const int64_t parts = std::min(kParts, n * count / kLeastPart), length = (count + parts - 1) / parts;
    Total<op, T> totals[kParts * kNarrow];
    c.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) add(0, p * length, std::min(count, (p + 1) * length), totals + p * n, n);
    });
    for (int64_t p = 1; p < parts; ++p)
      for (int64_t i = 0; i < n; ++i) totals[i].add(totals[p * n + i]);
    return store(totals, 0, n);
  }
  // A part of a row that is shorter than a few lines is read more slowly than it is shared.
  const int64_t grain = std::max<int64_t>(256, 8192 / std::max<int64_t>(count, 1));
  c.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    Total<op, T> totals[kBlock];
    w.kept.walk(begin, end, [&](const int64_t(&at)[1], int64_t out, int64_t length) {
      for (int64_t b = 0; b < length; b += kBlock) {
        const int64_t m = std::min(kBlock, length - b);
        std::fill_n(totals, m, Total<op, T>());
        add(at[0] + b, 0, count, totals, m);
        store(totals, out + b, m);
      }
    });
  });
}

// The last dimension is reduced: rows fold to numbers. Few outputs of many elements each are cut into
// parts, which depend on the shape alone, so that the result does not depend on the threads.
template <ReduceOp op, class T> void reduce_rows(Context &c, const Walks &w) {
  const T *x = c.input(0).data<T>();
  T *y = c.output(0).data<T>();
  const int dtype = c.input(0).dtype();
  const int64_t count = w.reduced.total;
  auto fold = FoldRows_simd();
  constexpr int64_t kPart = 16384;  // elements that are folded in float32
  auto total = [&](int64_t at, int64_t begin, int64_t end) {
    Total<op, T> sum;
    w.reduced.walk(begin, end, [&](const int64_t(&offset)[1], int64_t, int64_t m) {
      for (int64_t b = 0; b < m; b += kPart) {
        Accumulator<T> part;
        fold(dtype, op, x + at + offset[0] + b, 0, 1, std::min(kPart, m - b), &part);
        sum.add(part);
      }
    });
    return sum;
  };
  constexpr int64_t kParts = 64, kLeastPart = 65536;
  if (w.kept.total < 8 && count >= 2 * kLeastPart) {
    const int64_t length = std::max(kLeastPart, (count + kParts - 1) / kParts);
    const int64_t parts = (count + length - 1) / length;
    w.kept.walk(0, w.kept.total, [&](const int64_t(&at)[1], int64_t out, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        Total<op, T> part[kParts], sum;
        c.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
          for (int64_t p = begin; p < end; ++p)
            part[p] = total(at[0] + i * w.kept.step[0], p * length, std::min(count, (p + 1) * length));
        });
        for (int64_t p = 0; p < parts; ++p) sum.add(part[p]);
        y[out + i] = sum.value(count);
      }
    });
    return;
  }
  const bool whole = w.reduced.dims == 0 && count <= kPart;
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(count, 1));
  c.parallel_for(w.kept.total, grain, [&](int64_t begin, int64_t end) {
    w.kept.walk(begin, end, [&](const int64_t(&at)[1], int64_t out, int64_t n) {
      constexpr int64_t kRows = 64;
      for (int64_t i = 0; i < n && whole; i += kRows) {  // one call for many rows that are short
        const int64_t rows = std::min(kRows, n - i);
        Accumulator<T> parts[kRows];
        fold(dtype, op, x + at[0] + i * w.kept.step[0], w.kept.step[0], rows, count, parts);
        for (int64_t r = 0; r < rows; ++r) {
          Total<op, T> sum;
          sum.add(parts[r]);
          y[out + i + r] = sum.value(count);
        }
      }
      for (int64_t i = 0; i < n && !whole; ++i) y[out + i] = total(at[0] + i * w.kept.step[0], 0, count).value(count);
    });
  });
}

// The definition: every element of x goes to the output element of its kept dimensions.
template <ReduceOp op, class T> void reduce_plain(Context &c, const Walks &w) {
  using A = std::conditional_t<std::is_integral_v<T>, T, double>;
  using U = std::conditional_t<std::is_same_v<T, int32_t>, uint32_t,
                               std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, double>>;
  using E = std::conditional_t<std::is_integral_v<T>, T, float>;
  const T *x = c.input(0).data<T>();
  w.kept.walk(0, w.kept.total, [&](const int64_t(&at)[1], int64_t out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      A acc = 0;
      bool first = true;
      w.reduced.walk(0, w.reduced.total, [&](const int64_t(&offset)[1], int64_t, int64_t m) {
        for (int64_t k = 0; k < m; ++k, first = false) {
          const A v = A(E(x[at[0] + i * w.kept.step[0] + offset[0] + k * w.reduced.step[0]]));
          if constexpr (op == kMax) acc = !first && (acc != acc || v <= acc) ? acc : v;
          else if constexpr (op == kMin) acc = !first && (acc != acc || v >= acc) ? acc : v;
          else acc = A(U(acc) + U(v));
        }
      });
      if constexpr (op == kMean) acc = A(double(acc) / double(w.reduced.total));
      c.output(0).data<T>()[out + i] = T(E(acc));
    }
  });
}

template <ReduceOp op> void KernelReduce(Context &c) {
  const Walks w(c);
  const bool into_rows = w.kept.row > 1 && w.kept.step[0] == 1;
  dispatch<float, float16, bfloat16, int32_t, int64_t>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    into_rows ? reduce_into_rows<op, T>(c, w) : reduce_rows<op, T>(c, w);
  });
}

template <ReduceOp op> void ReferenceReduce(Context &c) {
  dispatch<float, float16, bfloat16, int32_t, int64_t>(
      c, c.input(0).dtype(), [&](auto zero) { reduce_plain<op, decltype(zero)>(c, Walks(c)); });
}

}  // namespace

void KernelReduceSum(Context &c) { KernelReduce<kSum>(c); }
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(ReduceMean, .inputs = 1, .infer = InferReduce<kMean>, .kernel = KernelReduce<kMean>,
           .reference = ReferenceReduce<kMean>)
OPGRAFT_OP(ReduceSum, .inputs = 1, .infer = InferReduce<kSum>, .kernel = KernelReduceSum,
           .reference = ReferenceReduce<kSum>)
OPGRAFT_OP(ReduceMax, .inputs = 1, .infer = InferReduce<kMax>, .kernel = KernelReduce<kMax>,
           .reference = ReferenceReduce<kMax>)
OPGRAFT_OP(ReduceMin, .inputs = 1, .infer = InferReduce<kMin>, .kernel = KernelReduce<kMin>,
           .reference = ReferenceReduce<kMin>)
#endif
