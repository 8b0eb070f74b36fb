// Attention of few queries over keys and values as they lie, per SIMD target: a tile of keys is read once for all
// queries of the heads that share it, then its values. What bounds it is the memory that holds them.
#include <cmath>
#include <cstring>

#include "attention.h"

#if defined(OPGRAFT_ATTENTION_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ATTENTION_DIRECT_INL_H_
#undef OPGRAFT_ATTENTION_DIRECT_INL_H_
#else
#define OPGRAFT_ATTENTION_DIRECT_INL_H_
#endif

#include "opgraft/simd.h"
#include "weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The vector at column i of a row of `dim` elements; what lies beyond its end counts as zero.
template <class D, class T> HWY_INLINE hn::Vec<D> LoadColumn(D d, const T *row, int64_t i, int64_t dim) {
  return dim - i >= int64_t(hn::Lanes(d)) ? LoadF32(d, row + i) : LoadF32N(d, row + i, size_t(dim - i));
}

// s[r * kTile + t] = q row r times key t, of kR rows, which are padded with zeros to whole vectors and `width` apart,
// and n keys, `step` apart. Keys are taken kT at once.
template <int kR, int kT, class T>
HWY_INLINE void ScoreRows(const float *q, int64_t width, const T *k, int64_t step, int64_t n, int64_t dim, float *s) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), whole = dim / lanes * lanes;
  int64_t t = 0;
  for (; t + kT <= n; t += kT) {
    const T *row = k + t * step;
    hn::Vec<decltype(d)> sum[kR][kT];
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < kT; ++j) sum[r][j] = hn::Zero(d);
    auto add = [&](int64_t i, auto load) HWY_ATTR {
      hn::Vec<decltype(d)> x[kR];
#pragma GCC unroll 4
      for (int r = 0; r < kR; ++r) x[r] = hn::LoadU(d, q + r * width + i);
#pragma GCC unroll 8
      for (int j = 0; j < kT; ++j) {
        const auto y = load(row + j * step + i);
#pragma GCC unroll 4
        for (int r = 0; r < kR; ++r) sum[r][j] = hn::MulAdd(x[r], y, sum[r][j]);
      }
    };
    for (int64_t i = 0; i < whole; i += lanes) add(i, [&](const T *p) HWY_ATTR { return LoadF32(d, p); });
    if (whole < dim) add(whole, [&](const T *p) HWY_ATTR { return LoadF32N(d, p, size_t(dim - whole)); });
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      if constexpr (kT == 1) {
        s[r * kTile + t] = hn::GetLane(hn::SumOfLanes(d, sum[r][0]));
      } else {
#pragma GCC unroll 2
        for (int j = 0; j < kT; j += 4)
          StoreSums(d, sum[r][j], sum[r][j + 1], sum[r][j + 2], sum[r][j + 3], s + r * kTile + t + j);
      }
    }
  }
  if constexpr (kT > 1)
    if (t < n) ScoreRows<kR, kT == 8 ? 4 : 1>(q, width, k + t * step, step, n - t, dim, s + t);
}

// sums = sums * before + the n rows of v, `step` apart, weighted by s, whose rows are `apart`, for kR rows; kC vectors
// from column i on.
template <int kR, int kC, class T> HWY_INLINE void WeighColumns(const float *s, int64_t apart, const T *v, int64_t step,
                                                                int64_t n, int64_t i, int64_t dim, const float *before,
                                                                float *sums, int64_t width) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kR][kC];
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kC; ++c)
      sum[r][c] = hn::Mul(hn::LoadU(d, sums + r * width + i + c * lanes), hn::Set(d, before[r]));
  auto add = [&](int64_t t, auto load) HWY_ATTR {
    hn::Vec<decltype(d)> p[kR];
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) p[r] = hn::Set(d, s[r * apart + t]);
#pragma GCC unroll 8
    for (int c = 0; c < kC; ++c) {
      const auto x = load(v + t * step, i + c * lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kR; ++r) sum[r][c] = hn::MulAdd(p[r], x, sum[r][c]);
    }
  };
  if (dim - i >= kC * lanes) {
    for (int64_t t = 0; t < n; ++t) add(t, [&](const T *row, int64_t j) HWY_ATTR { return LoadF32(d, row + j); });
  } else {
    for (int64_t t = 0; t < n; ++t)
      add(t, [&](const T *row, int64_t j) HWY_ATTR { return LoadColumn(d, row, j, dim); });
  }
#pragma GCC unroll 4
  for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kC; ++c) hn::StoreU(sum[r][c], d, sums + r * width + i + c * lanes);
}

// All columns, in as few passes over v as there are registers for.
template <int kR, class T> HWY_INLINE void WeighRows(const float *s, int64_t apart, const T *v, int64_t step, int64_t n,
                                                     int64_t dim, const float *before, float *sums, int64_t width) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  constexpr int kMost = (hn::MaxLanes(d) == 16 ? 16 : 8) / kR < 8 ? (hn::MaxLanes(d) == 16 ? 16 : 8) / kR : 8;
  int64_t i = 0;
  for (; i + (kMost - 1) * lanes < dim; i += kMost * lanes)
    WeighColumns<kR, kMost>(s, apart, v, step, n, i, dim, before, sums, width);
  if constexpr (kMost > 4)
    for (; i + 3 * lanes < dim; i += 4 * lanes) WeighColumns<kR, 4>(s, apart, v, step, n, i, dim, before, sums, width);
  for (; i + lanes < dim; i += 2 * lanes) WeighColumns<kR, 2>(s, apart, v, step, n, i, dim, before, sums, width);
  if (i < dim) WeighColumns<kR, 1>(s, apart, v, step, n, i, dim, before, sums, width);
}

// WeighRows of any number of rows, kMost at once.
template <int kMost, class T> HWY_INLINE void WeighTile(const float *s, int64_t apart, const T *v, int64_t step,
                                                        int64_t n, int64_t dim, int64_t rows, const float *before,
                                                        float *sums, int64_t width) {
  int64_t r = 0;
  for (; r + kMost <= rows; r += kMost)
    WeighRows<kMost>(s + r * apart, apart, v, step, n, dim, before + r, sums + r * width, width);
  if constexpr (kMost > 2)
    for (; r + 2 <= rows; r += 2)
      WeighRows<2>(s + r * apart, apart, v, step, n, dim, before + r, sums + r * width, width);
  if (r < rows) WeighRows<1>(s + r * apart, apart, v, step, n, dim, before + r, sums + r * width, width);
}

// s[r * kTile + t] = q row r times key t, of keys that lie in columns, `step` apart: weighed by q.
template <int kMost, class T> HWY_NOINLINE void ScoreColumns(const float *q, int64_t width, const T *k, int64_t step,
                                                             int64_t n, int64_t dim, int64_t rows, float *s) {
  const float none[kRows] = {};
  std::memset(s, 0, size_t(rows * kTile) * sizeof(float));
  WeighTile<kMost>(q, width, k, step, dim, n, rows, none, s, kTile);
}

// The scores of n keys from k on for all rows of q, kMost at once.
template <int kMost, class T> HWY_INLINE void ScoreTile(const Attention &g, const float *q, int64_t width, const T *k,
                                                        int64_t n, int64_t rows, float *scores) {
  const int64_t step = g.k_at.row;
  if (g.k_step != 1) return ScoreColumns<kMost>(q, width, k, g.k_step, n, g.dim, rows, scores);
  int64_t r = 0;
  for (; r + kMost <= rows; r += kMost)
    ScoreRows<kMost, 4>(q + r * width, width, k, step, n, g.dim, scores + r * kTile);
  if constexpr (kMost > 2)
    for (; r + 2 <= rows; r += 2) ScoreRows<2, 4>(q + r * width, width, k, step, n, g.dim, scores + r * kTile);
  if (r < rows) ScoreRows<1, 8>(q + r * width, width, k, step, n, g.dim, scores + r * kTile);
}

// Units [begin, end) of (batch, head of keys, chunk of rows, split of keys).
template <class T> void AttendDirect(const Attention &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), width = (g.dim + lanes - 1) / lanes * lanes;
  const int64_t value_width = (g.value_dim + lanes - 1) / lanes * lanes;
  constexpr int kMost = hn::MaxLanes(d) == 16 ? 4 : 2;  // rows at once; registers
  HWY_ALIGN float q_rows[kRows * kMostDim], scores[kRows * kTile], sum_rows[kRows * kMostDim];
  float *const q = g.wide() ? g.own_rows : q_rows, *const sums = g.wide() ? g.own_sums() : sum_rows;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t split = unit % g.splits, chunk = unit / g.splits % g.chunks;
    const int64_t head = unit / g.splits / g.chunks % g.kv_heads, batch = unit / g.splits / g.chunks / g.kv_heads;
    const int64_t row0 = chunk * kRows, rows = g.rows() - row0 < kRows ? g.rows() - row0 : kRows;
    const int64_t length = g.length(batch);
    const T *keys = static_cast<const T *>(g.k) + batch * g.k_at.batch + head * g.k_at.head;
    const T *values = static_cast<const T *>(g.v) + batch * g.v_at.batch + head * g.v_at.head;
    RowStates<kRows> state;
    for (int64_t r = 0; r < rows; ++r) {
      const T *row = static_cast<const T *>(g.q) + g.query_at(batch, head, row0 + r);
      for (int64_t i = 0; i < width; i += lanes) hn::StoreU(LoadColumn(d, row, i, g.dim), d, q + r * width + i);
      for (int64_t i = 0; i < value_width; i += lanes) hn::StoreU(hn::Zero(d), d, sums + r * value_width + i);
      state.begin(g, batch, head, row0, r);
    }
    const int64_t last = length * (split + 1) / g.splits;
    for (int64_t t = length * split / g.splits; t < last; t += kTile) {
      const int64_t n = last - t < kTile ? last - t : kTile;
      const T *k = keys + t * g.k_at.row, *v = values + t * g.v_at.row;
      ScoreTile<kMost>(g, q, width, k, n, rows, scores);
      SoftmaxTile<T>(g, scores, kTile, rows, t, n, state);
      WeighTile<kMost>(scores, kTile, v, g.v_at.row, n, g.value_dim, rows, state.before, sums, value_width);
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (g.splits == 1) {
        Finish(sums + r * value_width, state.l[r], g.counts(state.seen[r], state.l[r]),
               static_cast<T *>(g.out) + g.result_at(batch, head, row0 + r), g.value_dim);
      } else {
        float *to = g.partial + (unit * kRows + r) * g.partial_row();
        to[0] = state.m[r], to[1] = state.l[r];
        for (int64_t i = 0; i < g.value_dim; ++i) to[16 + i] = sums[r * value_width + i];
      }
    }
  }
}

// Rows [begin, end) of (batch, head of keys, row) from their splits.
template <class T> void Join(const Attention &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  HWY_ALIGN float sum_row[kMostDim];
  float *const sums = g.wide() ? g.own_sums() : sum_row;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i % g.rows(), head = i / g.rows() % g.kv_heads, batch = i / g.rows() / g.kv_heads;
    const int64_t unit = (i / g.rows() * g.chunks + row / kRows) * g.splits;
    auto part = [&](int64_t split) { return g.partial + ((unit + split) * kRows + row % kRows) * g.partial_row(); };
    float m = -HUGE_VALF, l = 0.0f;
    for (int64_t s = 0; s < g.splits; ++s) m = part(s)[0] > m ? part(s)[0] : m;
    for (int64_t s = 0; s < g.splits; ++s) {
      const float *p = part(s), w = p[0] == m ? 1.0f : std::exp(p[0] - m);
      l += w * p[1];
      const auto weight = hn::Set(d, w);
      for (int64_t c = 0; c < g.value_dim; c += lanes) {
        const auto x = LoadColumn(d, p + 16, c, g.value_dim);
        hn::StoreU(s == 0 ? hn::Mul(weight, x) : hn::MulAdd(weight, x, hn::LoadU(d, sums + c)), d, sums + c);
      }
    }
    Finish(sums, l, g.counts(g.seen(g.length(batch), row), l), static_cast<T *>(g.out) + g.result_at(batch, head, row),
           g.value_dim);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
