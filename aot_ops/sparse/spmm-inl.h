// Sparse times dense, per SIMD target: groups of a packed matrix over a strip of the dense operand that lies in L1, and
// rows of CSR arrays as they come.
#include "aot_ops/sparse/spmm.h"

#if defined(OPGRAFT_SPMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SPMM_INL_H_
#undef OPGRAFT_SPMM_INL_H_
#else
#define OPGRAFT_SPMM_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

using sparse::Group;
using sparse::kGroupRows;
using sparse::kStepsAhead;
using sparse::Step;
using SpmmVec = hn::Vec<hn::ScalableTag<float>>;

constexpr int64_t kSpmmLanes = int64_t(hn::MaxLanes(hn::ScalableTag<float>()));
constexpr int kStripVectors = 4;
// Sliced groups hold rows x vectors accumulators at once: 4 x 4 of 32 registers with AVX-512, else 2 x 4 of 16.
#if HWY_TARGET <= HWY_AVX3
constexpr int kSlicedRows = 4, kJointVectors = 4;
#else
constexpr int kSlicedRows = 2, kJointVectors = 2;
#endif

int64_t StripWidth() { return kStripVectors * kSpmmLanes; }
int64_t SpmmLanes() { return kSpmmLanes; }

// `rows` are where the group's rows of the result lie; V vectors of each.
template <int V> HWY_INLINE void Sliced(const Group &g, const Step *HWY_RESTRICT steps, const float *HWY_RESTRICT d,
                                        float *const *rows) {
  const hn::ScalableTag<float> df;
  for (int first = 0; first < kGroupRows; first += kSlicedRows) {
    SpmmVec acc[kSlicedRows][V];
#pragma GCC unroll 4
    for (int r = 0; r < kSlicedRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = hn::LoadU(df, rows[first + r] + v * kSpmmLanes);
    }
    const Step *s = steps;
    for (int32_t i = g.steps; i > 0; --i, ++s) {
#pragma GCC unroll 4
      for (int r = 0; r < kSlicedRows; ++r) {
        const auto x = hn::Set(df, s->v[first + r]);
        const float *from = d + size_t(s->k[first + r]) * size_t(V * kSpmmLanes);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(x, hn::LoadU(df, from + v * kSpmmLanes), acc[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kSlicedRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], df, rows[first + r] + v * kSpmmLanes);
    }
  }
}

// kSkip: what is 0 adds nothing, not even 0 * inf; else the dense operand is finite.
template <int V, bool kSkip>
HWY_INLINE void Joint(const Group &g, const Step *HWY_RESTRICT steps, const float *HWY_RESTRICT d, float *const *rows) {
  const hn::ScalableTag<float> df;
  constexpr int kAtOnce = V % kJointVectors ? V : kJointVectors;
  for (int first = 0; first < V; first += kAtOnce) {
    SpmmVec acc[kGroupRows][kAtOnce];
#pragma GCC unroll 4
    for (int r = 0; r < kGroupRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) acc[r][v] = hn::LoadU(df, rows[r] + (first + v) * kSpmmLanes);
    }
    const Step *s = steps;
    for (int32_t i = g.steps; i > 0; --i, ++s) {
      const float *from = d + size_t(s->k[0]) * size_t(V * kSpmmLanes) + first * kSpmmLanes;
      const float *next = d + size_t(s[kStepsAhead].k[0]) * size_t(V * kSpmmLanes) + first * kSpmmLanes;
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) __builtin_prefetch(next + v * kSpmmLanes);
      SpmmVec x[kAtOnce];
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) x[v] = hn::LoadU(df, from + v * kSpmmLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kGroupRows; ++r) {
        if (kSkip && s->v[r] == 0.0f) continue;
        const auto a = hn::Set(df, s->v[r]);
#pragma GCC unroll 4
        for (int v = 0; v < kAtOnce; ++v) acc[r][v] = hn::MulAdd(a, x[v], acc[r][v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kGroupRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) hn::StoreU(acc[r][v], df, rows[r] + (first + v) * kSpmmLanes);
    }
  }
}

template <int V> HWY_NOINLINE void GroupsOf(const Group *g, int64_t count, const Step *steps, const float *d, float *y,
                                            int64_t ldy, float *none, bool finite) {
  for (const Group *end = g + count; g < end; ++g) {
    float *rows[kGroupRows];
    for (int r = 0; r < kGroupRows; ++r) rows[r] = g->rows[r] < 0 ? none : y + g->rows[r] * ldy;
    if (g + 1 < end)
      for (int r = 0; r < kGroupRows; ++r) {
        const float *next = g[1].rows[r] < 0 ? none : y + g[1].rows[r] * ldy;
        for (int v = 0; v < V; ++v) __builtin_prefetch(next + v * kSpmmLanes);
      }
    if (!g->joint) Sliced<V>(*g, steps + g->at, d, rows);
    else if (finite) Joint<V, false>(*g, steps + g->at, d, rows);
    else Joint<V, true>(*g, steps + g->at, d, rows);
  }
}

// y[rows of the groups] += groups * d. d is one tile, `width` (1 to 4 vectors) wide; rows of y are ldy apart; what
// has no row goes to `none`.
void Groups(const Group *g, int64_t count, const Step *steps, const float *d, int64_t width, float *y, int64_t ldy,
            float *none, bool finite) {
  if (width == kSpmmLanes) GroupsOf<1>(g, count, steps, d, y, ldy, none, finite);
  else if (width == 2 * kSpmmLanes) GroupsOf<2>(g, count, steps, d, y, ldy, none, finite);
  else if (width == 3 * kSpmmLanes) GroupsOf<3>(g, count, steps, d, y, ldy, none, finite);
  else GroupsOf<4>(g, count, steps, d, y, ldy, none, finite);
}

// Whether no element is inf or NaN.
template <class T> bool Finite(const void *data, int64_t n) {
  const hn::ScalableTag<float> df;
  const T *x = static_cast<const T *>(data);
  auto zero = hn::Zero(df);  // becomes NaN
  int64_t i = 0;
  for (; i + kSpmmLanes <= n; i += kSpmmLanes) zero = hn::MulAdd(LoadF32(df, x + i), hn::Zero(df), zero);
  if (i < n) zero = hn::MulAdd(LoadF32N(df, x + i, size_t(n - i)), hn::Zero(df), zero);
  return hn::AllTrue(df, hn::Eq(zero, hn::Zero(df)));
}

// Rows [k0, k1) and columns [c0, c1) of D as a tile `width` wide, zeros beside it and in row `block`, the last.
// Returns whether all is finite.
template <class T>
bool Tile(const MatrixRef &d, int64_t k0, int64_t k1, int64_t c0, int64_t c1, int64_t block, int64_t width, float *to) {
  const int64_t rows = k1 - k0, columns = c1 - c0;
  const T *from = static_cast<const T *>(d.data) + k0 * d.row_stride + c0 * d.column_stride;
  Gather(from, d.row_stride, d.column_stride, rows, columns, to, width);
  for (int64_t k = 0; columns < width && k < rows; ++k)
    std::memset(to + k * width + columns, 0, size_t(width - columns) * 4);
  std::memset(to + block * width, 0, size_t(width) * 4);
  return Finite<float>(to, rows * width);
}

// y = the activation of from + bias, element by element; bias null: none.
template <Activation kActivation, class T>
HWY_INLINE void FollowRow(const float *from, const T *bias, int64_t n, T *y) {
  const hn::ScalableTag<float> df;
  int64_t i = 0;
  for (; i + kSpmmLanes <= n; i += kSpmmLanes) {
    auto v = hn::LoadU(df, from + i);
    if (bias) v = hn::Add(v, LoadF32(df, bias + i));
    StoreF32(Activate(df, kActivation, v), df, y + i);
  }
  if (i == n) return;
  const size_t rest = size_t(n - i);
  auto v = LoadF32N(df, from + i, rest);
  if (bias) v = hn::Add(v, LoadF32N(df, bias + i, rest));
  StoreF32N(Activate(df, kActivation, v), df, y + i, rest);
}

// One row of float32 sums as T, elements `stride` apart.
template <class T> void StoreRow(const float *from, int64_t columns, void *to, int64_t stride) {
  T *y = static_cast<T *>(to);
  if (stride == 1) return FollowRow<Activation::kNone, T>(from, nullptr, columns, y);
  for (int64_t j = 0; j < columns; ++j) y[j * stride] = T(from[j]);
}

// y = the activation of y + bias, one of type T for all of y; null: none.
template <class T> void BiasAndActivation(float *y, int64_t n, const void *bias, Activation activation) {
  const hn::ScalableTag<float> df;
  const auto more = hn::Set(df, bias ? float(*static_cast<const T *>(bias)) : 0.0f);
  for (int64_t i = 0; i < n; i += kSpmmLanes) {
    const size_t lanes = size_t(n - i < kSpmmLanes ? n - i : kSpmmLanes);
    StoreF32N(Activate(df, activation, hn::Add(LoadF32N(df, y + i, lanes), more)), df, y + i, lanes);
  }
}

template <Activation kActivation, class T> HWY_NOINLINE void StoreColumnsOf(const float *from, int64_t ld, int64_t rows,
                                                                            int64_t columns, T *y, int64_t stride,
                                                                            const T *bias) {
  constexpr int64_t kColumns = 16, kRows = sparse::kStoreRows;
  HWY_ALIGN float turned[kColumns * kRows];
  for (int64_t j = 0; j < columns; j += kColumns) {
    const int64_t n = columns - j < kColumns ? columns - j : kColumns;
    Gather(from + j, 1, ld, n, rows, turned, kRows);
    for (int64_t i = 0; i < n; ++i) FollowRow<kActivation>(turned + i * kRows, bias, rows, y + (j + i) * stride);
  }
}
// Rows of sums, `ld` apart, transposed: column j of them as T at to + j * stride, with the rows' bias and activation.
// Not at once: rows of T a power of two apart would share the sets of L1 while they are filled four elements at a time.
template <class T> void StoreColumns(const float *from, int64_t ld, int64_t rows, int64_t columns, void *to,
                                     int64_t stride, const void *bias, Activation activation) {
  const auto as = [&](auto f) {
    f(from, ld, rows, columns, static_cast<T *>(to), stride, static_cast<const T *>(bias));
  };
  switch (activation) {
    case Activation::kGelu: return as(StoreColumnsOf<Activation::kGelu, T>);
    case Activation::kGeluTanh: return as(StoreColumnsOf<Activation::kGeluTanh, T>);
    case Activation::kRelu: return as(StoreColumnsOf<Activation::kRelu, T>);
    case Activation::kSilu: return as(StoreColumnsOf<Activation::kSilu, T>);
    default: return as(StoreColumnsOf<Activation::kNone, T>);
  }
}

// Columns [j, j + V vectors) of one row, from CSR arrays and a row-major D.
template <int V, class T, class I>
HWY_INLINE void DirectStrip(const I *k, const T *v, int64_t entries, const T *d, int64_t ldd, float *y) {
  const hn::ScalableTag<float> df;
  SpmmVec acc[V];
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) acc[i] = hn::Zero(df);
  for (int64_t e = 0; e < entries; ++e) {
    const float value = float(v[e]);
    if (value == 0.0f) continue;
    const auto x = hn::Set(df, value);
    const T *from = d + int64_t(k[e]) * ldd;
#pragma GCC unroll 8
    for (int i = 0; i < V; ++i) acc[i] = hn::MulAdd(x, LoadF32(df, from + i * kSpmmLanes), acc[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < V; ++i) hn::StoreU(acc[i], df, y + i * kSpmmLanes);
}

// One row of the product into y, which has room for whole vectors.
template <class T, class I>
void DirectRowOf(const I *k, const T *v, int64_t entries, const T *d, int64_t ldd, int64_t columns, float *y) {
  int64_t j = 0;
  for (; j + 8 * kSpmmLanes <= columns; j += 8 * kSpmmLanes) DirectStrip<8>(k, v, entries, d + j, ldd, y + j);
  for (; j + 2 * kSpmmLanes <= columns; j += 2 * kSpmmLanes) DirectStrip<2>(k, v, entries, d + j, ldd, y + j);
  for (; j + kSpmmLanes <= columns; j += kSpmmLanes) DirectStrip<1>(k, v, entries, d + j, ldd, y + j);
  for (; j < columns; ++j) {
    float sum[4] = {};  // four chains hide the latency of additions
    for (int64_t e = 0; e < entries; ++e)
      if (const float value = float(v[e]); value != 0.0f) sum[e % 4] += value * float(d[int64_t(k[e]) * ldd + j]);
    y[j] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}
// `wide`: k are 64-bit, else 32-bit.
template <class T> void DirectRow(const void *k, bool wide, const void *v, int64_t entries, const void *d, int64_t ldd,
                                  int64_t columns, float *y) {
  const T *values = static_cast<const T *>(v), *dense = static_cast<const T *>(d);
  if (wide) DirectRowOf(static_cast<const int64_t *>(k), values, entries, dense, ldd, columns, y);
  else DirectRowOf(static_cast<const int32_t *>(k), values, entries, dense, ldd, columns, y);
}

template <class T> float RowDot(const void *a, const void *b, int64_t n) {
  const hn::ScalableTag<float> df;
  const T *x = static_cast<const T *>(a), *y = static_cast<const T *>(b);
  auto s0 = hn::Zero(df), s1 = s0;
  int64_t i = 0;
  for (; i + 2 * kSpmmLanes <= n; i += 2 * kSpmmLanes) {
    s0 = hn::MulAdd(LoadF32(df, x + i), LoadF32(df, y + i), s0);
    s1 = hn::MulAdd(LoadF32(df, x + i + kSpmmLanes), LoadF32(df, y + i + kSpmmLanes), s1);
  }
  for (; i < n; i += kSpmmLanes) {
    const size_t rest = size_t(n - i < kSpmmLanes ? n - i : kSpmmLanes);
    s0 = hn::MulAdd(LoadF32N(df, x + i, rest), LoadF32N(df, y + i, rest), s0);
  }
  return hn::GetLane(hn::SumOfLanes(df, hn::Add(s0, s1)));
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
